"""Code of users: references to it in settings, its source locations and its failures."""
