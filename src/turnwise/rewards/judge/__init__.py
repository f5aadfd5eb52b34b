"""Judges: a model that scores answers, behind an endpoint or here, within a budget and once for each request."""
