"""Filters: select the groups of a step to train on, by a score per group. The selection may be empty.

StarPO-S (Wang et al. 2025, RAGEN) keeps the groups whose rewards differ most between members: a group whose members all
fare alike teaches a relative advantage nothing, and as they spread, updates that follow noise end in collapse.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from turnwise.algos.stats import group_statistics
from turnwise.algos.user_code import class_of_function, naming
from turnwise.core.errors import UserError
from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import GROUPS, PLAYED, Need
from turnwise.settings.section import NonNegative, Positive

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch

ZERO_SCORE = 1e-10
TOP_P_SLACK = 0.01
"""How far the sum of scores that top_p keeps may fall short of its share."""


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


class GroupFilter(Choice):
    """A filter of groups, or none."""

    @property
    def refill_rounds(self) -> int:
        """Further rounds of rollouts, at most, until as many groups as rollout.groups pass."""
        return 0

    def rate_scale(self, kept_share: float) -> float:
        """Return the factor of the learning rates."""
        return 1.0


class NoFilter(GroupFilter, kind="none"):
    """Keep every group."""


class Filter(GroupFilter):
    """A filter of groups and its settings.

    One of your own, algo.filter FILE.py:name, is a class derived from `tw.Filter`, or a function of the scores [G].
    """

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"scale": PLAYED}
    by: Literal["reward_std", "reward", "reward_sum", "entropy", "entropy_std", "length"] = "reward_std"
    """Score that groups are ranked by."""
    scale: Literal["none", "share", "root"] = "none"
    """Factor of the learning rates of policy and critic: 1, the share of groups that passed, or its square root."""

    @property
    def score(self) -> GroupScore:
        """Score of a group, chosen by `by`."""
        return SCORES[self.by]

    def needs(self) -> list[Need]:
        compares = Need(
            GROUPS, f"algo.filter.by {self.by} compares the members of a group", "choose another algo.filter.by"
        )
        refills = Need(PLAYED, "algo.filter.refill needs episodes that are played", "set algo.filter.refill to 0")
        return [compares] * (self.score.reduce is group_std) + [refills] * (self.refill_rounds > 0)

    def rate_scale(self, kept_share: float) -> float:
        """Return the factor of the learning rates: with fewer groups, a smaller step.

        A factor of the loss would have no effect with AdamW and Muon, which normalise the gradient.
        """
        return {"none": 1.0, "share": kept_share, "root": math.sqrt(kept_share)}[self.scale]

    @abstractmethod
    def keeps(self, scores: Tensor) -> Tensor:
        """Return which groups are kept, [G] bool."""

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> type[Self]:
        return class_of_function(cls, function, setting="algo.filter", method="keeps", argument="scores")


def select_groups(chosen: Filter, scores: Tensor) -> Tensor:
    """Return which groups are kept, [G] bool, and check what the user's code returned."""
    with naming(chosen, "algo.filter") as label:
        returned: Any = chosen.keeps(scores)
        if returned is None:
            raise UserError(f"{label} returned None: return one bool per group.")
        kept = torch.as_tensor(returned)
    if kept.dtype != torch.bool or kept.shape != scores.shape:
        raise UserError(f"{label} returned {kept.dtype} {list(kept.shape)}: return one bool per group.")
    return kept


class RankedFilter(Filter):
    """A filter that prefers high scores, or low ones."""

    largest: bool = True
    """Prefer groups with high scores."""
    keep_zero: bool = True
    """Keep groups of score 0; false: leave them out first."""

    def candidates(self, scores: Tensor) -> Tensor:
        return (scores.abs() > ZERO_SCORE) | self.keep_zero

    def rank(self, scores: Tensor) -> Tensor:
        return _rank(scores, self.candidates(scores), largest=self.largest)

    def best(self, scores: Tensor, count: int) -> Tensor:
        """Mark the best `count` candidates."""
        return _mark(scores, self.rank(scores)[:count])


class TopP(Filter, kind="top_p"):
    """Keep the best groups until their scores sum to p sum(s) - TOP_P_SLACK; never one with a score of 0 or less."""

    value: NonNegative = 0.9
    """p."""
    largest: bool = True
    """Prefer groups with high scores."""

    def keeps(self, scores: Tensor) -> Tensor:
        candidates = scores > 0
        target = self.value * scores[candidates].double().sum() - TOP_P_SLACK
        order = _rank(scores, candidates, largest=self.largest)
        before = scores[order].double().cumsum(0) - scores[order]
        needed = before < target
        needed[:1] = True
        return _mark(scores, order[needed])


class TopPSoftmax(RankedFilter, kind="top_p_softmax"):
    """Keep the fewest best groups whose softmax(s) (softmax(-s) for low ones) sums to p, at least one; p >= 1: all."""

    value: NonNegative = 0.9
    """p."""

    def keeps(self, scores: Tensor) -> Tensor:
        order = self.rank(scores)
        if self.value >= 1:
            return _mark(scores, order)
        shares = (scores if self.largest else -scores)[order].double().softmax(dim=0)
        needed = shares.cumsum(0) - shares < self.value
        needed[:1] = True
        return _mark(scores, order[needed])


class TopK(RankedFilter, kind="top_k"):
    """Keep the best share of all groups, rounded down, at least one."""

    value: NonNegative = 0.9
    """Share of the groups."""

    def keeps(self, scores: Tensor) -> Tensor:
        return self.best(scores, max(1, math.floor(self.value * scores.shape[0] + 1e-9)))  # 0.29 * 100 is 28.999...


class TopCount(RankedFilter, kind="top_count"):
    """Keep the best groups, `count` of them."""

    count: Positive
    """Number of groups."""

    def keeps(self, scores: Tensor) -> Tensor:
        return self.best(scores, self.count)


class Quarter(RankedFilter, kind="quarter"):
    """Keep the best quarter (StarPO-S, by the standard deviation of rewards)."""

    def keeps(self, scores: Tensor) -> Tensor:
        return self.best(scores, max(1, scores.shape[0] // 4))


class Absolute(RankedFilter, kind="absolute"):
    """Keep all groups at or above a bound (at or below it for low scores)."""

    value: NonNegative = 0.9
    """The bound."""
    refill: Annotated[int, Field(ge=0)] = 0
    """Further rounds of rollouts, at most, until as many groups as rollout.groups pass the filter."""

    @property
    def refill_rounds(self) -> int:
        return self.refill

    def keeps(self, scores: Tensor) -> Tensor:
        good = scores >= self.value if self.largest else scores <= self.value
        return good & self.candidates(scores)


class MinP(RankedFilter, kind="min_p"):
    """Keep s >= p max(s), or s <= min(s) / p for low scores. For non-negative scores."""

    value: NonNegative = 0.9
    """p."""

    def keeps(self, scores: Tensor) -> Tensor:
        candidates = self.candidates(scores)
        if not candidates.any():
            return candidates
        best = scores[candidates].max() if self.largest else scores[candidates].min()
        good = scores >= self.value * best if self.largest else scores * self.value <= best
        return good & candidates


def _rank(scores: Tensor, candidates: Tensor, *, largest: bool) -> Tensor:
    """Indices of the candidates, best first; ties in order."""
    numbers = candidates.nonzero()[:, 0]
    return numbers[scores[numbers].argsort(descending=largest, stable=True)]


def _mark(scores: Tensor, numbers: Tensor) -> Tensor:
    return torch.zeros_like(scores, dtype=torch.bool).index_fill(0, numbers, True)


FILTERS: dict[str, type[GroupFilter]] = choices(NoFilter, TopP, TopPSoftmax, TopK, TopCount, Quarter, Absolute, MinP)
