"""What `turnwise envs new` writes: an environment with its test, to start from."""
