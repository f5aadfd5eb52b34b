"""Attention over packed tokens: the Hugging Face interface, the operator, and the learner's plans."""
