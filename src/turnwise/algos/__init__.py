"""Advantages, losses, KL, reward normalisation, filters, diagnostics: pure functions on tensors. Imports core only."""
