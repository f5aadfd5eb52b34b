"""2048: slide and merge tiles until one reaches the target."""
