"""Policies that generate: native (in process, shares the learner's weights) and scripted (tests)."""
