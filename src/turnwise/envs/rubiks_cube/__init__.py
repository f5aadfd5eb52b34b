"""Turn a scrambled 2x2 cube back."""
