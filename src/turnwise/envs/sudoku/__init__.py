"""Complete a grid of digits."""
