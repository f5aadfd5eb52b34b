"""Reach a target by calculating with a few numbers."""
