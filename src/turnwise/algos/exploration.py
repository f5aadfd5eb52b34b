"""Exploration: a bonus for the entropy of the actions that a group takes, as part of the advantage.

An entropy bonus on tokens is paid out where it costs nothing: in text after the answer, or in the spelling of an action
(docs/results/exploration.md). This one compares what the environment understood. With p(a | s) the share of a group's
visits to state s in which its members took the actions a,

    grad H(s) = E[-log p(a | s) grad log p(a | s)],   H(s) = E[-log p(a | s)]

so the bonus of a turn is coef (-log p(a | s) - H(s)): rare actions get more than common ones, and the bonuses of a
state sum to 0. Groups that fail or succeed as a whole get it too; without it they have nothing to learn from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from turnwise.algos.stats import group_statistics, pair_ids, reduce_by_group
from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import GROUPS, Need

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


class Exploration(Choice):
    """A bonus for varied actions, or none."""


class NoExploration(Exploration, kind="none"):
    """No bonus."""


class ActionEntropy(Exploration, kind="action_entropy"):
    """A + coef (-log p(a | s) - H(s)) on the tokens of each turn, p the share of the group's visits to its state."""

    coef: Annotated[float, Field(gt=0)] = 0.1
    """Coefficient of the bonus; with a target, its least value."""
    target: Annotated[float, Field(gt=0)] | None = None
    """Target entropy of the actions of a turn, in nats; coef rises while theirs is lower. None keeps it constant."""
    max_coef: Annotated[float, Field(gt=0)] = 1.0
    """Largest coefficient with a target. Advantages have a standard deviation of about 1."""

    tasks: Literal["all", "unsolved"] = "all"
    """Groups with the bonus: all, or those without a success."""

    def needs(self) -> list[Need]:
        why = "algo.exploration action_entropy compares the actions of a group's members"
        return [Need(GROUPS, why, "choose algo.exploration none")]


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


EXPLORATIONS: dict[str, type[Exploration]] = choices(NoExploration, ActionEntropy)
