"""Advantages, losses, KL, normalisation, filters, each with its settings; diagnostics. Pure functions on tensors."""
