"""Judges: models that score answers or groups, behind an endpoint or loaded here, within a budget, with a cache."""
