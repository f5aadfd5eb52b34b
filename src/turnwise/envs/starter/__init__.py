"""`turnwise envs new NAME`: templates of an environment and its test."""
