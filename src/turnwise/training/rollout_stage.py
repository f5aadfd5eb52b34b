"""Rollout stage of a training step: roll out groups, score their rewards, filter them, and refill if too few pass."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from turnwise.algos.filters import FILTERS, RATE_SCALES, SCORES, GroupScore
from turnwise.config.algorithm import AlgoConfig
from turnwise.core.errors import Outage
from turnwise.core.learner import Learner, Needs
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.samples import AllowedSets, build_samples
from turnwise.record.metrics import rollout_metrics
from turnwise.rewards.scoring import RewardSet, ScoredGroups, count_members, score_groups
from turnwise.rollout.collect import CollectedGroups, DrawCounts, GroupCollector
from turnwise.rollout.failures import DroppedEpisodes
from turnwise.rollout.tasks import SuccessCounts, TaskSource
from turnwise.training.estimate import Baselines, score_samples

ShowProgress = Callable[[str, int, int], None]
"""Phase, done, total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    groups: list[Group]
    """All groups that were rolled out, with their rewards."""
    kept: list[Group]
    """Groups to train on."""
    kept_share: float
    """Share of the groups that passed the filter, including surplus groups beyond a full batch."""
    rate_scale: float
    """Factor of the step's learning rates."""
    counts: Counter[str]
    baselines: Baselines | None
    """None if the estimator does not need them."""
    dropped: DroppedEpisodes
    """Episodes that are not in the groups because they failed or their group was dropped."""
    replayed: bool = False
    """The groups were not played in this step but drawn from stored episodes."""

    @property
    def num_tokens(self) -> float:
        """Number of ids in the groups, sampled or not."""
        turns = [turn for group in self.groups for each in group.trajectories for turn in each.turns]
        return float(sum(len(turn.context_ids) + len(turn.action_ids) for turn in turns))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the groups: `rollout/...` if they were played, else `data/...`."""
        if self.replayed:
            found = rollout_metrics(self.groups)
            return {name.replace("rollout/", "data/"): value for name, value in found.items()}
        return {
            **rollout_metrics(self.groups),
            "rollout/kept_groups": float(len(self.kept)),
            "rollout/kept_share": self.kept_share,
            **{f"rollout/{name}": float(count) for name, count in self.counts.items()},
            "rollout/dropped": float(self.dropped.dropped),
            "rollout/dropped_no_reward": float(self.counts["dropped_no_reward"]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRound:
    """One round of tasks of a step, rolled out and scored."""

    episodes: int
    """Number of episodes that the round asked for."""
    collected: CollectedGroups
    scored: ScoredGroups
    drawn: DrawCounts
    """Tasks drawn in this step so far."""


@dataclass(slots=True)
class _Totals:
    """Groups and failures of a step's rounds so far."""

    groups: list[Group] = field(default_factory=list)
    kept: list[Group] = field(default_factory=list)
    """Groups that passed the filter."""
    counts: Counter[str] = field(default_factory=Counter)
    dropped: DroppedEpisodes = field(default_factory=DroppedEpisodes)


class GroupSource(Protocol):
    """Where a step's groups come from: the environment (`RolloutStage`), or stored episodes (`offline.ReplayStage`)."""

    @property
    def tasks(self) -> TaskSource: ...
    async def run(
        self, step: int, show: ShowProgress, success_counts: SuccessCounts | None = None
    ) -> RolloutResult: ...
    def admit(
        self, done: int, success_counts: SuccessCounts, drawn_with: Mapping[str, SuccessCounts] | None = None
    ) -> None: ...
    def drawn_with(self, done: int) -> dict[str, dict[str, tuple[float, float]]]: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStage:
    tasks: TaskSource
    collector: GroupCollector
    greedy: GroupCollector | None
    """Rolls out one greedy episode per kept group as its baseline; None if the estimator does not need it."""
    rewards: RewardSet
    algo: AlgoConfig
    learner: Learner
    groups: int
    group_size: int
    refill: int
    """Maximum number of further rounds of tasks while fewer than `groups` groups pass the filter."""
    micro_tokens: int
    allowed_sets: AllowedSets | None = None
    """For turns with a constraint."""

    async def run(self, step: int, show: ShowProgress, success_counts: SuccessCounts | None = None) -> RolloutResult:
        """Roll out and filter the groups of a step. `success_counts`: results of tasks so far, for a curriculum."""
        totals, drawn = _Totals(), DrawCounts()
        for number in range(1 + self.refill):
            round = await self.next_round(step, number, drawn, show, success_counts)
            drawn = round.drawn
            self._add(round, totals)
            if len(totals.kept) >= self.groups:
                break
        kept, dropped, baselines = totals.kept[: self.groups], totals.dropped, None
        if self.greedy is not None and kept:
            baselines = await self._roll_out_baselines(self.greedy, kept, step, show, totals.counts, dropped)
            with_baseline = [group for group in kept if (group.task.env, group.task.seed) in baselines]
            dropped.dropped += count_members(kept) - count_members(with_baseline)
            kept = with_baseline
        return self._result(totals, kept, baselines)

    async def use(self, collected: CollectedGroups, episodes: int) -> RolloutResult:
        """Score and filter the groups of a step that were rolled out elsewhere; `episodes` were asked for."""
        scored = await score_groups(collected.groups, self.rewards)
        totals = _Totals()
        self._add(RolloutRound(episodes=episodes, collected=collected, scored=scored, drawn=DrawCounts()), totals)
        return self._result(totals, totals.kept, baselines=None)

    def _add(self, round: RolloutRound, totals: "_Totals") -> None:
        _count(round, totals.counts, totals.dropped)
        totals.dropped.total += round.episodes
        totals.dropped.dropped += round.episodes - count_members(round.scored.groups)
        totals.groups += round.scored.groups
        totals.kept += filter_groups(round.scored.groups, self.learner, self.algo, self.micro_tokens, self.allowed_sets)

    def _result(self, totals: "_Totals", kept: list[Group], baselines: Baselines | None) -> RolloutResult:
        kept_share = len(totals.kept) / len(totals.groups)
        return RolloutResult(
            groups=totals.groups,
            kept=kept,
            kept_share=kept_share,
            rate_scale=RATE_SCALES[self.algo.filter_scale](kept_share),
            counts=totals.counts,
            baselines=baselines,
            dropped=totals.dropped,
        )

    async def next_round(
        self, step: int, number: int, drawn: DrawCounts, show: ShowProgress, success_counts: SuccessCounts | None
    ) -> RolloutRound:
        return await self.roll_out(step, number, drawn, show, success_counts)

    async def roll_out(
        self,
        step: int,
        number: int,
        drawn: DrawCounts,
        show: ShowProgress,
        success_counts: SuccessCounts | None,
        gate: asyncio.Semaphore | None = None,
    ) -> RolloutRound:
        """Roll out and score one round of tasks. `gate` limits the episodes in flight together with other steps'."""
        tasks = self.tasks.draw(step, self.groups, start=number * self.groups, success_counts=success_counts)
        collected = await self.collector.collect(
            tasks,
            group_size=self.group_size,
            round=step,
            drawn=drawn,
            progress=lambda done, total: show("rollout", done, total),
            gate=gate,
        )
        scored = await score_groups(collected.groups, self.rewards)
        return RolloutRound(episodes=len(tasks) * self.group_size, collected=collected, scored=scored, drawn=drawn)

    def admit(
        self, done: int, success_counts: SuccessCounts, drawn_with: Mapping[str, SuccessCounts] | None = None
    ) -> None:
        """Do nothing: a step's rollouts start with the step. `AsyncRolloutStage` starts later steps here."""

    def drawn_with(self, done: int) -> dict[str, dict[str, tuple[float, float]]]:
        """Return the task results with which the curriculum drew the tasks of later steps that have started."""
        return {}

    async def close(self) -> None:
        """Stop the rollouts of later steps."""

    async def _roll_out_baselines(
        self,
        greedy: GroupCollector,
        kept: list[Group],
        step: int,
        show: ShowProgress,
        counts: Counter[str],
        dropped: DroppedEpisodes,
    ) -> Baselines:
        collected = await greedy.collect(
            [group.task for group in kept],
            group_size=1,
            round=step,
            progress=lambda done, total: show("greedy members", done, total),
        )
        scored = await score_groups(collected.groups, self.rewards)
        _count(RolloutRound(episodes=len(kept), collected=collected, scored=scored, drawn=Counter()), counts, dropped)
        return {(group.task.env, group.task.seed): group.trajectories[0].total_reward for group in scored.groups}


def _count(round: RolloutRound, counts: Counter[str], dropped: DroppedEpisodes) -> None:
    """Add the failures of a round to `counts`, and its last reason to `dropped`."""
    collected, scored = round.collected, round.scored
    if not scored.groups:
        raise Outage(f"no group of this step could be scored ({scored.last_failure}): fix that first")
    counts += collected.counts
    counts += Counter(dropped_groups=len(scored.failures), dropped_no_reward=scored.dropped_members)
    dropped.reason = scored.last_failure or str(collected.last_failure or dropped.reason)
    dropped.cause = None if scored.last_failure else collected.last_failure or dropped.cause


def filter_groups(
    groups: Sequence[Group],
    learner: Learner,
    algo: AlgoConfig,
    micro_tokens: int,
    allowed_sets: AllowedSets | None = None,
) -> list[Group]:
    """Return the groups that pass the filter, which may be none."""
    if algo.filter == "none":
        return list(groups)
    members = [(number, each) for number, group in enumerate(groups) for each in group.trajectories if each.num_sampled]
    if not members:
        return []
    score = SCORES[algo.filter_by]
    values = _group_score_inputs([each for _, each in members], score, learner, micro_tokens, allowed_sets)
    scores = score.reduce(values, torch.tensor([number for number, _ in members]), len(groups))
    kept = FILTERS[algo.filter].compute(scores, algo)
    return [group for group, keep in zip(groups, kept.tolist(), strict=True) if keep]


def _group_score_inputs(
    trajectories: list[Trajectory],
    score: GroupScore,
    learner: Learner,
    micro_tokens: int,
    allowed_sets: AllowedSets | None,
) -> Tensor:
    """Return the quantity of each trajectory that the group score reduces. [B]"""
    if score.quantity == "returns":
        return torch.tensor([each.total_reward for each in trajectories], dtype=torch.float64)
    if score.quantity == "lengths":
        return torch.tensor([float(each.num_sampled) for each in trajectories])
    samples = build_samples(trajectories, allowed_sets)
    entropies = score_samples(samples, learner, Needs(entropy=True), micro_tokens)["entropy"]
    owners = torch.tensor([sample.trajectory for sample in samples])
    owners = owners.repeat_interleave(torch.tensor([len(each) for each in entropies]))
    totals = torch.zeros(len(trajectories)).index_add(0, owners, torch.cat(entropies))
    return totals / owners.bincount(minlength=len(trajectories))
