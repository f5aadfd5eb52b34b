"""Find the hidden city by asking free-form questions."""
