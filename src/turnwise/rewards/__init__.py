"""What a trajectory is worth: the environment's rewards, the format penalty, weighted reward functions."""
