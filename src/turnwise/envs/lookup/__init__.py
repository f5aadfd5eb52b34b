"""Look up a number that only a tool knows."""
