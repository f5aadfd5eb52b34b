"""What several tests know of the advantages."""

TURN_ADVANTAGES = {"turn_gae", "step_gae", "bi_level_gae", "gigpo", "turn_grpo", "reinforce", "reinforce_pp"}
"""Those that depend on where turns begin: tests/algos/test_mutations.py fails if one is missing."""
