"""Advantages, losses, KL, entropy, aggregation, whitening: pure functions on tensors. Imports core only."""
