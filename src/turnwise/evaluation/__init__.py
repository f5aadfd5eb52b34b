"""Evaluation: success rates with intervals, pass@k, paired comparison, Elo."""
