"""Reach a target number by combining a few numbers with + - * /."""
