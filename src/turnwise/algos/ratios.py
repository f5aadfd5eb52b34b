"""Ratios of two policies at a token, over a turn, or over a sequence, which is here the segment.

segment_ids   0 0 0 0 0 | 1 1 1 1
turn_ids      0 0 1 1 1 | 0 0 0 1
unit, turn    0 0 1 1 1   2 2 2 3      tokens of one unit share one ratio
"""

from typing import Literal

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp of more than this is no ratio that anything can be learnt from, and soon infinite."""

Level = Literal["token", "turn", "sequence"]
LEVELS: tuple[Level, ...] = ("token", "turn", "sequence")


def bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def unit_ids(segment_ids: Tensor, turn_ids: Tensor, level: Level) -> Tensor:
    """[M] numbers from 0 that are equal where two tokens share a ratio; tokens may come in any order."""
    if level == "token":
        return torch.arange(segment_ids.shape[0], device=segment_ids.device)
    if level == "sequence":
        return segment_ids.unique(return_inverse=True)[1]
    if level == "turn":
        return torch.stack((segment_ids, turn_ids)).unique(dim=1, return_inverse=True)[1]
    raise ValueError(f'a ratio is taken per {", ".join(LEVELS)}, not per "{level}"')


def sum_over(values: Tensor, units: Tensor) -> Tensor:
    """[M] the sum over each token's unit; gradients reach every token of it."""
    totals = values.new_zeros(units.shape[0]).index_add(0, units, values)
    return totals[units]


def max_over(values: Tensor, units: Tensor) -> Tensor:
    """[M] the largest value of each token's unit."""
    largest = values.new_full(units.shape, -torch.inf).scatter_reduce(0, units, values, "amax")
    return largest[units]


def mean_over(values: Tensor, units: Tensor) -> Tensor:
    """[M] the mean over each token's unit; gradients reach every token of it."""
    return sum_over(values, units) / sum_over(torch.ones_like(values), units)
