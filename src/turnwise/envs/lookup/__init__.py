"""A number that only a tool knows."""
