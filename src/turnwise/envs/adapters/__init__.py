"""Environments of other people's packages, each of them an extra."""
