"""Functions to write, judged by tests."""
