"""Estimators: what turns the episodes of a step into training data."""
