"""The learner, the loop, checkpoints, and the warm-up of tiny."""
