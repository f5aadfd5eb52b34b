"""Rewards: reward functions, rubrics, built-in rewards and judges. `scoring` is where scores are computed."""
