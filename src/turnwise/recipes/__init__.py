"""Presets, and `reference.py`: the whole algorithm in one file."""
