"""Questions from a file, any tools and any reward: an environment without code."""
