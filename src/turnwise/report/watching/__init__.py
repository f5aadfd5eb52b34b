"""A run's curves in the terminal."""
