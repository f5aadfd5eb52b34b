"""Which groups of a step are trained. Those that are not still count in the rollout's metrics."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.filters import FILTERS, Filter, FilterParams, Score
from turnwise.core.samples import Learner, Needs
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.samples import samples_of
from turnwise.training.scoring import score_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterSettings:
    filter: Filter
    params: FilterParams
    score: Score
    scale: str
    """Factor of the learning rates: the name of one of RATE_SCALES."""


def filter_groups(
    groups: Sequence[Group], learner: Learner, settings: FilterSettings, micro_tokens: int
) -> list[Group]:
    """Those that are kept; perhaps none."""
    if settings.filter is FILTERS["none"]:
        return list(groups)
    members = [(number, each) for number, group in enumerate(groups) for each in group.trajectories if each.num_sampled]
    if not members:
        return []
    values = _values([each for _, each in members], settings.score, learner, micro_tokens)
    scores = settings.score.reduce(values, torch.tensor([number for number, _ in members]), len(groups))
    kept = settings.filter.compute(scores, settings.params)
    return [group for group, keep in zip(groups, kept.tolist(), strict=True) if keep]


def _values(trajectories: list[Trajectory], score: Score, learner: Learner, micro_tokens: int) -> Tensor:
    """The number of each trajectory that its group is ranked by. [B]"""
    if score.of == "returns":
        return torch.tensor([each.total_reward for each in trajectories], dtype=torch.float64)
    if score.of == "lengths":
        return torch.tensor([float(each.num_sampled) for each in trajectories])
    samples = samples_of(trajectories)
    entropies = score_samples(samples, learner, Needs(entropy=True), micro_tokens)["entropy"]
    owners = torch.tensor([sample.trajectory for sample in samples])
    owners = owners.repeat_interleave(torch.tensor([len(each) for each in entropies]))
    totals = torch.zeros(len(trajectories)).index_add(0, owners, torch.cat(entropies))
    return totals / owners.bincount(minlength=len(trajectories))
