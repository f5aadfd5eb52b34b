"""Facts about the advantages that several tests use."""

TURN_ADVANTAGES = {"turn_gae", "step_gae", "bi_level_gae", "gigpo", "turn_grpo", "reinforce", "reinforce_pp"}
"""Advantages that depend on where turns begin: tests/algos/test_mutations.py fails if one is missing."""
