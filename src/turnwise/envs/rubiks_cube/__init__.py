"""Solve a scrambled 2x2 Rubik's cube."""
