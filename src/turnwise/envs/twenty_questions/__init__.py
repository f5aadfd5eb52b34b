"""Find the hidden thing by asking yes-or-no questions."""
