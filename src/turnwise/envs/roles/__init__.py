"""Environments in which several agents act, each in a role of its own."""
