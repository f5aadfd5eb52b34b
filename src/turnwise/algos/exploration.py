"""Exploration: a bonus for the entropy of the actions that a group takes, as part of the advantage.

An entropy bonus on tokens is paid out where it costs nothing: in text after the answer, or in the spelling of an action
(docs/results/exploration.md). This one compares what the environment understood. With p(a | s) the share of a group's
visits to state s in which its members took the actions a,

    grad H(s) = E[-log p(a | s) grad log p(a | s)],   H(s) = E[-log p(a | s)]

so the bonus of a turn is coef (-log p(a | s) - H(s)): rare actions get more than common ones, and the bonuses of a
state sum to 0. Groups that fail or succeed as a whole get it too; without it they have nothing to learn from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.algos.stats import group_statistics, pair_ids, reduce_by_group

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


COEF, MAX_COEF = 0.1, 1.0
"""Least and largest coefficient of the bonus. Advantages have a standard deviation of about 1."""


def surprise(groups: Tensor, states: Tensor, actions: Tensor) -> tuple[Tensor, float | None]:
    """Return -log p(a | s) - H(s) of each of N decisions, and the mean entropy where a state was visited repeatedly.

    Computed from [N] indices of group, state and actions. A state that a group visited once has the bonus 0; the
    entropy is None if all were.
    """
    visited = pair_ids(groups, states)
    taken = pair_ids(visited, actions)
    visits, takes = (_counts(ids) for ids in (visited, taken))
    surprises = (visits / takes).log()
    repeated = visits > 1
    entropy = float(surprises[repeated].mean()) if bool(repeated.any()) else None
    return group_statistics(surprises, visited).centred, entropy


def _counts(ids: Tensor) -> Tensor:
    """Return how often each of the [N] ids occurs, in float64."""
    numbers = ids.unique(return_inverse=True)[1]
    return reduce_by_group(torch.ones(len(ids), dtype=torch.float64), numbers, "sum")
