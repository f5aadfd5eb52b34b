"""Statistics over the trajectories of a group: each trajectory counts once, one that sampled nothing never."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """One entry a trajectory, float64; all 0 where the trajectory has no sampled token."""

    centred: Tensor
    """[B] return minus the group's mean: exactly 0 in a group of one and where all returns are equal."""
    std: Tensor
    """[B] unbiased standard deviation of the group's returns."""
    size: Tensor
    """[B] trajectories of the group that count."""


def group_statistics(token_rewards: Tensor, mask: Tensor, group_ids: Tensor) -> GroupStatistics:
    """Statistics of the undiscounted returns of the rows of [B, T] rewards within their groups [B].

    Sums run in float64, and returns that differ by no more than the rounding of the rewards' own type count as
    equal: 0.1 + 0.2 against 0.3 would otherwise be blown up to an advantage by a division by their std.
    """
    counted = mask.any(dim=1)
    rewards = torch.where(mask, token_rewards, 0.0)[counted].double()
    group = group_ids[counted].unique(return_inverse=True)[1]
    returns = rewards.sum(dim=1)
    size = _over_group(torch.ones_like(returns), group, "sum")
    above_lowest = returns - _over_group(returns, group, "amin")
    rounding = 8 * torch.finfo(token_rewards.dtype).eps * _over_group(rewards.abs().sum(dim=1), group, "amax")
    equal = _over_group(above_lowest, group, "amax") <= rounding  # one that is alone, too
    centred = torch.where(equal, 0.0, above_lowest - _over_group(above_lowest, group, "mean"))
    variance = _over_group(centred.square(), group, "sum") / (size - 1).clamp(min=1)
    return GroupStatistics(
        centred=_at_rows(centred, counted), std=_at_rows(variance.sqrt(), counted), size=_at_rows(size, counted)
    )


def _over_group(values: Tensor, group: Tensor, reduction: str) -> Tensor:
    """Reduces [R] values within groups numbered from 0 and gives every row its group's result."""
    empty = values.new_zeros(values.shape[0])
    return empty.scatter_reduce(0, group, values, reduction, include_self=False)[group]


def _at_rows(values: Tensor, counted: Tensor) -> Tensor:
    """Puts the values of the counted rows at their places among all rows."""
    return values.new_zeros(counted.shape[0]).masked_scatter(counted, values)
