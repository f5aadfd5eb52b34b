"""The training service: Tinker's API over turnwise's learner and engine."""
