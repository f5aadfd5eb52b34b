"""Episodes that are played for a step: roll out groups, score their rewards, filter them, refill if too few pass."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnwise.algos.filters import Filter, GroupScore, select_groups
from turnwise.algos.settings import AlgoConfig
from turnwise.core.errors import Outage
from turnwise.core.learner import Learner, Needs
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.samples import AllowedSets, build_samples
from turnwise.record.steps import EpisodeSource, IdleReason
from turnwise.rewards.scoring import RewardSet, ScoredGroups, count_members, score_groups
from turnwise.rollout.collect import CollectedGroups, DrawCounts, GroupCollector
from turnwise.rollout.failures import DropMonitor, DroppedEpisodes
from turnwise.rollout.tasks import SuccessCounts, TaskSource
from turnwise.training.scores import score_samples
from turnwise.training.step import Baselines, Metrics, Part, Rollout, ShowProgress, TrainedStep


class TaskResults(Part):
    """Successes and tries of each task, by which a curriculum draws."""

    name = "curriculum"

    def __init__(self, tasks: TaskSource) -> None:
        self.counts: SuccessCounts = {}
        """Empty without a curriculum."""
        self._curriculum = tasks.curriculum

    def state(self) -> Mapping[str, Sequence[float]]:
        return {name: list(counts) for name, counts in self.counts.items()}

    def load_state(self, state: Mapping[str, Sequence[float]]) -> None:
        self.counts = {name: (won, tries) for name, (won, tries) in state.items()}

    def record(self, trained: TrainedStep) -> Metrics:
        if self._curriculum is None:
            return {}
        self.counts = self._curriculum.update(self.counts, trained.rollout.groups)
        return self._curriculum.metrics(self.counts)


SelectGroups = Callable[[Sequence[Group]], list[Group]]
"""Returns the groups to train on; see `filter_groups`."""


def explain_empty(groups: Sequence[Group]) -> IdleReason:
    """Return why none of the groups passed a filter."""
    has_tokens = any(trajectory.num_sampled for group in groups for trajectory in group.trajectories)
    return IdleReason.FILTERED if has_tokens else IdleReason.NO_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRound:
    """One round of tasks of a step, rolled out and scored."""

    episodes: int
    """Number of episodes that the round asked for."""
    collected: CollectedGroups
    scored: ScoredGroups
    drawn: DrawCounts
    """Tasks drawn in this step so far."""
    trained: Sequence[Group] | None = None
    """Groups to train on, where unsolved tasks were played again; None: those of `scored`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRounds:
    """Play tasks that no member of a group solved again."""

    collector: GroupCollector
    rounds: int


@dataclass(slots=True)
class _Totals:
    """Groups and failures of a step's rounds so far."""

    groups: list[Group] = field(default_factory=list)
    kept: list[Group] = field(default_factory=list)
    """Groups that passed the filter."""
    retried: list[Group] = field(default_factory=list)
    """Solved groups of tasks that were played again."""
    counts: Counter[str] = field(default_factory=Counter)
    dropped: DroppedEpisodes = field(default_factory=DroppedEpisodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Plays each step's tasks when the step begins."""

    tasks: TaskSource
    results: TaskResults
    collector: GroupCollector
    greedy: GroupCollector | None
    """Rolls out one greedy episode per kept group as its baseline; None if the estimator does not need it."""
    rewards: RewardSet
    select: SelectGroups
    scale: Callable[[float], float]
    """Factor of the learning rates, given the share of the groups that passed the filter."""
    count: int
    """Groups per step."""
    group_size: int
    refill: int
    """Maximum number of further rounds of tasks while fewer than `count` groups pass the filter."""
    show: ShowProgress
    retry: RetryRounds | None = None
    """None: unsolved tasks are not played again."""
    drops: DropMonitor = field(default_factory=DropMonitor)

    async def groups(self, step: int) -> Rollout:
        return await self.complete(step, await self._next_round(step, 0, DrawCounts()))

    async def complete(self, step: int, round: RolloutRound) -> Rollout:
        """Filter the first round of a step and, if too few groups pass, roll out further ones."""
        totals = _Totals()
        self._add(round, totals)
        for number in range(1, 1 + self.refill):
            if len(totals.kept) >= self.count:
                break
            round = await self._next_round(step, number, round.drawn)
            self._add(round, totals)
        kept, dropped, baselines = totals.kept[: self.count], totals.dropped, None
        if self.greedy is not None and kept:
            baselines = await self._roll_out_baselines(self.greedy, kept, step, totals.counts, dropped)
            with_baseline = [group for group in kept if (group.task.env, group.task.seed) in baselines]
            dropped.dropped += count_members(kept) - count_members(with_baseline)
            kept = with_baseline
        return self._result(step, totals, kept, baselines)

    async def use(self, step: int, collected: CollectedGroups, episodes: int) -> Rollout:
        """Score and filter the groups of a step that were rolled out elsewhere; `episodes` were asked for."""
        scored = await score_groups(collected.groups, self.rewards)
        totals = _Totals()
        self._add(RolloutRound(episodes=episodes, collected=collected, scored=scored, drawn=DrawCounts()), totals)
        return self._result(step, totals, totals.kept, baselines=None)

    def _add(self, round: RolloutRound, totals: "_Totals") -> None:
        _count(round, totals.counts, totals.dropped)
        played = round.episodes - round.collected.unplayed
        totals.dropped.total += played
        totals.dropped.dropped += played - count_members(round.scored.groups)
        totals.groups += round.scored.groups
        groups = round.scored.groups if round.trained is None else round.trained
        totals.kept += self.select(groups)
        first = {id(group) for group in round.scored.groups}
        totals.retried += [group for group in groups if id(group) not in first]

    def _result(self, step: int, totals: "_Totals", kept: list[Group], baselines: Baselines | None) -> Rollout:
        self.drops.add(totals.dropped)
        kept_share = len(totals.kept) / len(totals.groups)
        empty = IdleReason.DROPPED if totals.kept else explain_empty(totals.groups)
        return Rollout(
            number=step + 1,
            source=EpisodeSource.PLAYED,
            groups=totals.groups,
            kept=kept,
            retried=totals.retried,
            empty=None if kept else empty,
            kept_share=kept_share,
            rate_scale=self.scale(kept_share),
            counts=totals.counts,
            baselines=baselines,
            dropped=totals.dropped,
        )

    async def _next_round(self, step: int, number: int, drawn: DrawCounts) -> RolloutRound:
        return await self.roll_out(step, number, drawn, self.results.counts, self.show)

    async def roll_out(
        self,
        step: int,
        number: int,
        drawn: DrawCounts,
        success_counts: SuccessCounts,
        show: ShowProgress,
        gate: asyncio.Semaphore | None = None,
    ) -> RolloutRound:
        """Roll out and score one round of tasks. `gate` limits the episodes in flight together with other steps'."""
        tasks = self.tasks.draw(step, self.count, start=number * self.count, success_counts=success_counts)
        collected = await self.collector.collect(
            tasks,
            group_size=self.group_size,
            round=step,
            drawn=drawn,
            progress=lambda done, total: show("rollout", done, total),
            gate=gate,
        )
        scored = await score_groups(collected.groups, self.rewards)
        trained = None
        if self.retry is not None:
            trained = await self._retry(self.retry, scored.groups, step, drawn, collected.counts, gate)
        return RolloutRound(
            episodes=len(tasks) * self.group_size, collected=collected, scored=scored, drawn=drawn, trained=trained
        )

    async def _retry(
        self,
        retry: RetryRounds,
        groups: Sequence[Group],
        step: int,
        drawn: DrawCounts,
        counts: Counter[str],
        gate: asyncio.Semaphore | None,
    ) -> list[Group]:
        """Play tasks without a success again. A new group that has one takes the place of the first."""
        current = list(groups)
        for _ in range(retry.rounds):
            unsolved = [group.task for group in current if not _is_solved(group)]
            if not unsolved:
                break
            collected = await retry.collector.collect(
                unsolved, group_size=self.group_size, round=step, drawn=drawn, gate=gate
            )
            scored = await score_groups(collected.groups, self.rewards)
            solved = {(group.task.env, group.task.seed): group for group in scored.groups if _is_solved(group)}
            counts.update(retried_groups=len(unsolved), retry_solved=len(solved))
            counts.update({name: collected.counts[name] for name in ("env_errors", "infra_errors")})
            current = [solved.get((group.task.env, group.task.seed), group) for group in current]
        return current

    async def _roll_out_baselines(
        self, greedy: GroupCollector, kept: list[Group], step: int, counts: Counter[str], dropped: DroppedEpisodes
    ) -> Baselines:
        collected = await greedy.collect(
            [group.task for group in kept],
            group_size=1,
            round=step,
            progress=lambda done, total: self.show("greedy members", done, total),
        )
        scored = await score_groups(collected.groups, self.rewards)
        _count(RolloutRound(episodes=len(kept), collected=collected, scored=scored, drawn=Counter()), counts, dropped)
        return {(group.task.env, group.task.seed): group.trajectories[0].total_reward for group in scored.groups}


def _is_solved(group: Group) -> bool:
    return any(trajectory.status.succeeded for trajectory in group.trajectories)


def _count(round: RolloutRound, counts: Counter[str], dropped: DroppedEpisodes) -> None:
    """Add the failures of a round to `counts`, and its last reason to `dropped`."""
    collected, scored = round.collected, round.scored
    if not scored.groups:
        raise Outage(f"No group of this step could be scored ({scored.last_failure}): fix that first.")
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
    if not isinstance(algo.filter, Filter):
        return list(groups)
    members = [
        (number, trajectory)
        for number, group in enumerate(groups)
        for trajectory in group.trajectories
        if trajectory.num_sampled
    ]
    if not members:
        return []
    score = algo.filter.score
    values = _group_score_inputs([sample for _, sample in members], score, learner, micro_tokens, allowed_sets)
    scores = score.reduce(values, torch.tensor([number for number, _ in members]), len(groups))
    kept = select_groups(algo.filter, scores)
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
        return torch.tensor([trajectory.total_reward for trajectory in trajectories], dtype=torch.float64)
    if score.quantity == "lengths":
        return torch.tensor([float(trajectory.num_sampled) for trajectory in trajectories])
    samples = build_samples(trajectories, allowed_sets)
    entropies = score_samples(samples, learner, Needs(entropy=True), micro_tokens)["entropy"]
    owners = torch.tensor([sample.trajectory for sample in samples])
    owners = owners.repeat_interleave(torch.tensor([len(entropie) for entropie in entropies]))
    totals = torch.zeros(len(trajectories)).index_add(0, owners, torch.cat(entropies))
    return totals / owners.bincount(minlength=len(trajectories))
