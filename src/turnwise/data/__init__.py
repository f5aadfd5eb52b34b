"""Trajectories -> samples -> packed batches; demonstrations."""
