"""Push boxes onto targets."""
