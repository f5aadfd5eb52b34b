"""Group statistics and whitening.

Each trajectory counts once in a group's statistics; one without sampled tokens does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


STD_FLOOR = 1e-6
"""Smaller standard deviations are rounding errors or ties and are not divided by. Added to the others as epsilon."""


ROUNDING = 8
"""Values that differ by at most this many rounding errors of their type count as equal."""


VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """One float64 entry per member; all 0 for a trajectory without sampled tokens."""

    values: Tensor
    """[N] the values themselves."""
    centred: Tensor
    """[N] value minus the group's mean: exactly 0 in a group of one and where all values are equal."""
    std: Tensor
    """[N] unbiased standard deviation within the group."""
    size: Tensor
    """[N] number of members that count."""

    def standardised(self) -> Tensor:
        """(x - mean) / (std + epsilon), 0 where the std is at most epsilon, which is STD_FLOOR."""
        return torch.where(self.std <= STD_FLOOR, 0.0, self.centred / (self.std + STD_FLOOR))


def group_statistics(values: Tensor, groups: Tensor, rounding: Tensor | None = None) -> GroupStatistics:
    """Statistics of [N] values within groups [N], in float64.

    `rounding` [N] bounds the rounding error of each value (None: derived from the dtype and magnitude). Members that
    differ by no more count as equal; otherwise dividing 0.1 + 0.2 - 0.3 by its std would give an advantage.
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
    """Bound the rounding error of sums of rewards of this dtype, given the sums of absolute values. float64"""
    return ROUNDING * torch.finfo(dtype).eps * absolute_sums.double()


def return_statistics(token_rewards: Tensor, mask: Tensor, group_ids: Tensor) -> GroupStatistics:
    """Statistics of the undiscounted returns of the rows of [B, T] rewards within their groups [B]."""
    counted = mask.any(dim=1)
    rewards = torch.where(mask, token_rewards, 0.0)[counted].double()
    rounding = rounding_error(rewards.abs().sum(dim=1), token_rewards.dtype)
    statistics = group_statistics(rewards.sum(dim=1), group_ids[counted], rounding)
    return GroupStatistics(
        values=_at_rows(statistics.values, counted),
        centred=_at_rows(statistics.centred, counted),
        std=_at_rows(statistics.std, counted),
        size=_at_rows(statistics.size, counted),
    )


def reduce_by_group(values: Tensor, group: Tensor, reduction: str) -> Tensor:
    """Reduce [N] values within groups numbered from 0 and return each member's group result. [N]"""
    empty = values.new_zeros(values.shape[0])
    return empty.scatter_reduce(0, group, values, reduction, include_self=False)[group]


def pair_ids(first: Tensor, second: Tensor) -> Tensor:
    """[N] ids that are equal where both inputs are. (`unique` over pairs is ten times slower than over each.)"""
    seconds, number = second.unique(return_inverse=True)
    return first.unique(return_inverse=True)[1] * len(seconds) + number


def _at_rows(values: Tensor, counted: Tensor) -> Tensor:
    """Scatter the counted rows' values into all rows, 0 elsewhere."""
    return values.new_zeros(counted.shape[0]).masked_scatter(counted, values)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) with the unbiased variance over `mask`; 0 where the mask is 0.

    Equal values, or a single one, become exactly 0: `var_mean` uses a running mean, whereas sum / count would leave
    rounding noise, which would then be divided by 1e-4.
    """
    selected = values[mask].double()
    if selected.numel() == 0:
        return torch.zeros_like(values)
    variance, mean = torch.var_mean(selected, correction=min(1, selected.numel() - 1))
    whitened = (selected - mean) / (variance + VARIANCE_EPSILON).sqrt()
    return torch.zeros_like(values).masked_scatter(mask, whitened.to(values.dtype))


def effective_sample_size(log_weights: Tensor) -> float:
    """Return (sum w)^2 / sum w^2 of N weights: N if all are equal, 1 if only one of them counts (Kish; Kong 1992)."""
    squared_sum, sum_of_squares = 2 * log_weights.logsumexp(0), (2 * log_weights).logsumexp(0)
    return float((squared_sum - sum_of_squares).exp())
