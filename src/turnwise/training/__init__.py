"""The training loop, its sources, estimators and parts; update, learners, checkpoints, SFT, warm-up of tiny."""
