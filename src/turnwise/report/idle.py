"""Steps that trained nothing: how a row of the metrics shows it, and what mends it."""

from collections.abc import Mapping
from typing import Any

EMPTY, IDLE = "train/empty_steps", "train/idle_steps"


def why_idle(row: Mapping[str, Any]) -> str | None:
    """Why the policy learnt nothing in this step and what to change; None where it learnt, or only its critic did."""
    if EMPTY in row:
        return _why_empty(row)
    if IDLE in row:
        return (
            "every advantage was 0, as where the members of a group fare alike: give rewards that tell them apart, "
            "easier tasks, or raise rollout.group_size or rollout.temperature"
        )
    if row.get("train/grad_norm") == 0:
        return "every gradient was 0, as where no token counts: change algo.loss_tokens or algo.advantage_tokens"
    return None


def _why_empty(row: Mapping[str, Any]) -> str:
    if row.get("rollout/sampled_tokens") == 0:
        return "no episode had room for a single token behind its prompt: raise rollout.max_tokens"
    if row.get("rollout/kept_groups") == 0:
        return "the filter kept no group: choose another algo.filter or algo.filter_value"
    return "a limit cut every episode, and algo.truncated drop leaves those out: raise rollout.max_tokens"
