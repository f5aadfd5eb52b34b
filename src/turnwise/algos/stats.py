"""Statistics within groups: each trajectory counts once, one that sampled nothing never."""

from dataclasses import dataclass

import torch
from torch import Tensor

STD_FLOOR = 1e-6
"""A spread that is no larger is rounding or a tie: nothing is divided by it."""


ROUNDING = 8
"""Values that differ by no more than this many rounding errors of their own type count as equal."""


VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """One entry a member, float64; all 0 for a trajectory that has no sampled token."""

    values: Tensor
    """[N] what the statistics are of."""
    centred: Tensor
    """[N] value minus the group's mean: exactly 0 in a group of one and where all values are equal."""
    std: Tensor
    """[N] unbiased standard deviation within the group."""
    size: Tensor
    """[N] members of the group that count."""

    def standardised(self, epsilon: float = STD_FLOOR) -> Tensor:
        """(x - mean) / (std + epsilon), 0 where the std is at most STD_FLOOR."""
        return torch.where(self.std <= STD_FLOOR, 0.0, self.centred / (self.std + epsilon))


def group_statistics(values: Tensor, groups: Tensor, rounding: Tensor | None = None) -> GroupStatistics:
    """Statistics of [N] values within groups [N], in float64.

    `rounding` [N] is how far off each value may be (None: what the values' own type and size say). Members that differ
    by no more count as equal: 0.1 + 0.2 against 0.3 would otherwise be blown up to an advantage by a division by
    their std.
    """
    off = rounding_error(values.abs(), values.dtype) if rounding is None else rounding
    exact, group = values.double(), groups.unique(return_inverse=True)[1]
    size = reduce_by_group(torch.ones_like(exact), group, "sum")
    above_lowest = exact - reduce_by_group(exact, group, "amin")
    # A member that is alone in its group equals itself.
    equal = reduce_by_group(above_lowest, group, "amax") <= reduce_by_group(off, group, "amax")
    centred = torch.where(equal, 0.0, above_lowest - reduce_by_group(above_lowest, group, "mean"))
    variance = reduce_by_group(centred.square(), group, "sum") / (size - 1).clamp(min=1)
    return GroupStatistics(values=exact, centred=centred, std=variance.sqrt(), size=size)


def rounding_error(absolute_sums: Tensor, dtype: torch.dtype) -> Tensor:
    """How far off sums of rewards of this type may be, from the sums of their absolute values. float64"""
    return ROUNDING * torch.finfo(dtype).eps * absolute_sums.double()


def return_statistics(token_rewards: Tensor, mask: Tensor, group_ids: Tensor) -> GroupStatistics:
    """Statistics of the undiscounted returns of the rows of [B, T] rewards within their groups [B]."""
    counted = mask.any(dim=1)
    rewards = torch.where(mask, token_rewards, 0.0)[counted].double()
    rounding = rounding_error(rewards.abs().sum(dim=1), token_rewards.dtype)
    found = group_statistics(rewards.sum(dim=1), group_ids[counted], rounding)
    return GroupStatistics(
        values=_at_rows(found.values, counted),
        centred=_at_rows(found.centred, counted),
        std=_at_rows(found.std, counted),
        size=_at_rows(found.size, counted),
    )


def reduce_by_group(values: Tensor, group: Tensor, reduction: str) -> Tensor:
    """Reduces [N] values within groups numbered from 0 and gives every member its group's result."""
    empty = values.new_zeros(values.shape[0])
    return empty.scatter_reduce(0, group, values, reduction, include_self=False)[group]


def pair_ids(first: Tensor, second: Tensor) -> Tensor:
    """[N] each -> [N] numbers that are equal where both are. (`unique` over pairs is tenfold slower than over each.)"""
    seconds, number = second.unique(return_inverse=True)
    return first.unique(return_inverse=True)[1] * len(seconds) + number


def _at_rows(values: Tensor, counted: Tensor) -> Tensor:
    """Puts the values of the counted rows at their places among all rows."""
    return values.new_zeros(counted.shape[0]).masked_scatter(counted, values)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) with the unbiased variance over `mask`; 0 where the mask is 0.

    Equal values, and a single one, become exactly 0: `var_mean` updates a running mean, where a sum divided by the
    count would leave rounding noise, which is then divided by 1e-4.
    """
    selected = values[mask].double()
    if selected.numel() == 0:
        return torch.zeros_like(values)
    variance, mean = torch.var_mean(selected, correction=min(1, selected.numel() - 1))
    whitened = (selected - mean) / (variance + VARIANCE_EPSILON).sqrt()
    return torch.zeros_like(values).masked_scatter(mask, whitened.to(values.dtype))
