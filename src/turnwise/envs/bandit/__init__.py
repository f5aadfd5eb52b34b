"""A two-armed bandit: a small certain reward against a rare large one."""
