"""Trajectories to samples to packed batches."""
