"""Filters: select the groups of a step to train on, by a score per group. The selection may be empty.

StarPO-S (Wang et al. 2025, RAGEN) keeps the groups whose rewards differ most between members: a group whose members all
fare alike teaches a relative advantage nothing, and as they spread, updates that follow noise end in collapse.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from turnwise.algos.registry import Registry
from turnwise.algos.stats import group_statistics
from turnwise.core.algorithm import FilterParams
from turnwise.core.errors import UserError

ZERO_SCORE = 1e-10
TOP_P_SLACK = 0.01
"""How far the sum of scores that top_p keeps may fall short of its share."""
QUARTER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """Score of a group: a quantity of each member, reduced over the group."""

    quantity: Literal["returns", "entropy", "lengths"]
    """Return of a member; mean entropy over its sampled tokens, which the learner must compute first; or number of
    sampled tokens."""
    reduce: Callable[[Tensor, Tensor, int], Tensor]
    """(values [B], group_ids [B] from 0, number of groups G) -> scores [G] float64; 0 for a group without members."""


def group_std(values: Tensor, group_ids: Tensor, num_groups: int) -> Tensor:
    """Unbiased standard deviation; exactly 0 for equal members and for a single one."""
    std = values.new_zeros(num_groups, dtype=torch.float64)
    return std.index_copy(0, group_ids, group_statistics(values, group_ids).std)


def group_mean(values: Tensor, group_ids: Tensor, num_groups: int) -> Tensor:
    return group_sum(values, group_ids, num_groups) / group_ids.bincount(minlength=num_groups).clamp(min=1)


def group_sum(values: Tensor, group_ids: Tensor, num_groups: int) -> Tensor:
    return values.new_zeros(num_groups, dtype=torch.float64).index_add(0, group_ids, values.double())


SCORES: dict[str, GroupScore] = {
    "reward_std": GroupScore(quantity="returns", reduce=group_std),
    "reward": GroupScore(quantity="returns", reduce=group_mean),
    "reward_sum": GroupScore(quantity="returns", reduce=group_sum),
    "entropy": GroupScore(quantity="entropy", reduce=group_mean),
    "entropy_std": GroupScore(quantity="entropy", reduce=group_std),
    "length": GroupScore(quantity="lengths", reduce=group_mean),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    compute: Callable[[Tensor, FilterParams], Tensor]
    """(scores [G], params) -> [G] bool, True: kept."""
    reads: tuple[str, ...] = ()
    """Fields of FilterParams that change the result."""


def none(scores: Tensor, params: FilterParams) -> Tensor:
    """Keep every group."""
    return torch.ones_like(scores, dtype=torch.bool)


def top_p(scores: Tensor, params: FilterParams) -> Tensor:
    """Keep the best groups until their scores sum to p sum(s) - TOP_P_SLACK; never one with a score of 0 or less."""
    candidates = (scores > 0) & _candidates(scores, params)
    target = params.filter_value * scores[candidates].double().sum() - TOP_P_SLACK
    order = _rank(scores, candidates, params)
    before = scores[order].double().cumsum(0) - scores[order]
    needed = before < target
    needed[:1] = True
    return _mark(scores, order[needed])


def top_p_softmax(scores: Tensor, params: FilterParams) -> Tensor:
    """Keep the fewest best groups whose softmax(s) (softmax(-s) for low ones) sums to p, at least one; p >= 1: all."""
    order = _rank(scores, _candidates(scores, params), params)
    if params.filter_value >= 1:
        return _mark(scores, order)
    shares = (scores if params.filter_largest else -scores)[order].double().softmax(dim=0)
    needed = shares.cumsum(0) - shares < params.filter_value
    needed[:1] = True
    return _mark(scores, order[needed])


def top_k(scores: Tensor, params: FilterParams) -> Tensor:
    """Keep the best share of all groups, rounded down, at least one."""
    count = math.floor(params.filter_value * scores.shape[0] + 1e-9)  # 0.29 * 100 is 28.999...
    return top_count(scores, params.model_copy(update={"filter_value": max(1, count)}))


def top_count(scores: Tensor, params: FilterParams) -> Tensor:
    """Keep the best `filter_value` groups."""
    return _mark(scores, _rank(scores, _candidates(scores, params), params)[: int(params.filter_value)])


def quarter(scores: Tensor, params: FilterParams) -> Tensor:
    """Keep the best quarter (StarPO-S, by the standard deviation of rewards)."""
    return top_k(scores, params.model_copy(update={"filter_value": QUARTER}))


def absolute(scores: Tensor, params: FilterParams) -> Tensor:
    """Keep all groups at or above a bound (at or below it for low scores)."""
    good = scores >= params.filter_value if params.filter_largest else scores <= params.filter_value
    return good & _candidates(scores, params)


def min_p(scores: Tensor, params: FilterParams) -> Tensor:
    """Keep s >= p max(s), or s <= min(s) / p for low scores. For non-negative scores."""
    candidates = _candidates(scores, params)
    if not candidates.any():
        return candidates
    best = scores[candidates].max() if params.filter_largest else scores[candidates].min()
    good = scores >= params.filter_value * best if params.filter_largest else scores * params.filter_value <= best
    return good & candidates


def _candidates(scores: Tensor, params: FilterParams) -> Tensor:
    return (scores.abs() > ZERO_SCORE) | params.filter_keep_zero


def _rank(scores: Tensor, candidates: Tensor, params: FilterParams) -> Tensor:
    """Indices of the candidates, best first; ties in order."""
    numbers = candidates.nonzero()[:, 0]
    return numbers[scores[numbers].argsort(descending=params.filter_largest, stable=True)]


def _mark(scores: Tensor, numbers: Tensor) -> Tensor:
    return torch.zeros_like(scores, dtype=torch.bool).index_fill(0, numbers, True)


_RANKED = ("filter_value", "filter_largest", "filter_keep_zero")


def _from_user_function(function: Callable[..., Any]) -> Filter:
    def compute(scores: Tensor, params: FilterParams) -> Tensor:
        kept = torch.as_tensor(function(scores, params))
        if kept.dtype != torch.bool or kept.shape != scores.shape:
            raise UserError(f"algo.filter returned {kept.dtype} {list(kept.shape)}: return one bool per group")
        return kept

    return Filter(compute=compute)


FILTERS: Registry[Filter] = Registry(
    "algo.filter",
    _from_user_function,
    {
        "none": Filter(compute=none),
        "top_p": Filter(compute=top_p, reads=("filter_value", "filter_largest")),
        "top_p_softmax": Filter(compute=top_p_softmax, reads=_RANKED),
        "top_k": Filter(compute=top_k, reads=_RANKED),
        "top_count": Filter(compute=top_count, reads=_RANKED),
        "quarter": Filter(compute=quarter, reads=("filter_largest", "filter_keep_zero")),
        "absolute": Filter(compute=absolute, reads=_RANKED),
        "min_p": Filter(compute=min_p, reads=_RANKED),
    },
)

RATE_SCALES: dict[str, Callable[[float], float]] = {
    "none": lambda share: 1.0,
    "share": lambda share: share,
    "root": math.sqrt,
}
"""Factor of the learning rates of a filtered step, from the share of groups that passed: fewer groups, a smaller step.
(A factor of the loss would have no effect with AdamW and Muon, which normalise the gradient.)"""
