"""Run groups of episodes: a fixed number in flight, each finished one replaced at once, failed ones retried."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.core.errors import (
    InfrastructureFailure,
    Outage,
    RewardFailure,
)
from turnwise.core.protocols import Env, MakeEnv, Policy
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rollout.context import Context
from turnwise.rollout.episode import Limits, run_episode
from turnwise.rollout.failures import creation_boundary, guard_env, run_with_retries

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedGroups:
    groups: tuple[Group, ...]
    counts: Counter[str]
    """Failed attempts by type, dropped members, those dropped because a reward is missing, and dropped groups."""
    last_failure: Exception | None = None
    """Failure of the last dropped member."""
    unplayed: int = 0
    """Episodes that were over before their agent's first turn, as may happen to one of several agents."""


DrawCounts = Counter[tuple[tuple[str, int], ...]]
"""Number of times that each task (or match of two tasks) was drawn in a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCollector(ABC):
    """Base of collectors: runs groups of episodes through the subclass's `episodes`."""

    in_flight: int
    attempts: int
    run_seed: int
    reported: set[str] = field(default_factory=set, compare=False)
    """Environments whose first failure was logged."""

    @property
    def tasks_per_match(self) -> int:
        """Number of consecutive tasks whose n-th members run, and are retried, together."""
        return 1

    @abstractmethod
    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        """Run one episode per key and return one trajectory per key."""

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        round: int,
        drawn: DrawCounts | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        gate: asyncio.Semaphore | None = None,
    ) -> CollectedGroups:
        """Collect a group per task. Pass the same `drawn` to all calls of a round: it is updated in place.

        `gate` limits the episodes in flight of several calls that run at the same time.
        """
        many, counts = self.tasks_per_match, Counter[str]()
        gate = gate or asyncio.Semaphore(max(1, self.in_flight // many))
        total, done = len(tasks) * group_size, 0
        last_failure: Exception | None = None
        drawn = Counter() if drawn is None else drawn

        async def member(tasks: Sequence[Task], index: int) -> Sequence[Trajectory | None]:
            nonlocal done, last_failure
            async with gate:
                outcome = await self._run_member(tasks, index, round, counts)
            if isinstance(outcome, Exception):
                last_failure = outcome
                counts["dropped_no_reward"] += len(tasks) * isinstance(outcome, RewardFailure)
                return [None] * len(tasks)
            done += len(tasks)
            progress(done, total)
            return outcome

        try:
            async with asyncio.TaskGroup() as running:
                rows = [
                    [
                        running.create_task(member(match_tasks, index))
                        for index in _numbers(match_tasks, group_size, drawn)
                    ]
                    for match_tasks in (tasks[first : first + many] for first in range(0, len(tasks), many))
                ]
        except ExceptionGroup as failures:  # bugs or user errors: one is enough to report
            raise failures.exceptions[0] from None
        results = [[task.result()[slot] for task in row] for row in rows for slot in range(many)]
        groups = self._groups(tasks, results, group_size, counts)
        if not groups:
            raise Outage(f"Every episode failed. Fix the cause of the last failure: {last_failure}") from last_failure
        unplayed = sum(trajectory is not None and trajectory.never_acted for row in results for trajectory in row)
        counts["dropped"] += total - unplayed - sum(len(group.trajectories) for group in groups)
        return CollectedGroups(groups=groups, counts=+counts, last_failure=last_failure, unplayed=unplayed)

    async def _run_member(
        self, tasks: Sequence[Task], index: int, round: int, counts: Counter[str]
    ) -> Sequence[Trajectory] | Exception:
        """Run one member of each of these tasks; return the last failure if all attempts failed."""

        async def play(attempt: int) -> Sequence[Trajectory]:
            keys = [
                EpisodeKey(run_seed=self.run_seed, round=round, task=task, member=index, attempt=attempt)
                for task in tasks
            ]
            return await self.episodes(keys)

        def count_failure(failure: Exception) -> None:
            if isinstance(failure, InfrastructureFailure):
                counts["infra_errors"] += 1
                return
            counts["env_errors"] += 1
            if tasks[0].env not in self.reported:
                self.reported.add(tasks[0].env)
                log.warning("note: %s; the episode is retried (reported once, counted as rollout/env_errors)", failure)

        return await run_with_retries(self.attempts, play, count_failure)

    @staticmethod
    def _groups(
        tasks: Sequence[Task], results: list[list[Trajectory | None]], group_size: int, counts: Counter[str]
    ) -> tuple[Group, ...]:
        """Build groups of the remaining members. A single one is dropped: there is nothing to compare it with.

        Members that never had a turn, as may happen to one of several agents, are left out.
        """
        groups = []
        for task, row in zip(tasks, results, strict=True):
            left = tuple(trajectory for trajectory in row if trajectory is not None and not trajectory.never_acted)
            if len(left) >= min(2, group_size):
                groups.append(Group(task=task, trajectories=left))
            elif left or None in row:
                counts["dropped_groups"] += 1
        return tuple(groups)


def _numbers(tasks: Sequence[Task], group_size: int, drawn: DrawCounts) -> range:
    """Return the member numbers of a group.

    A task that is drawn again in the same round gets new numbers. Equal numbers would give equal randomness and so
    repeat the same episodes.
    """
    name = tuple((task.env, task.seed) for task in tasks)
    first = drawn[name] * group_size
    drawn[name] += 1
    return range(first, first + group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector(GroupCollector):
    """Episodes of one policy, each in its own environment."""

    policy: Policy
    make_env: MakeEnv
    context: Context
    """Stateless: an episode's history is in its turns."""
    limits: Limits

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        (key,) = keys
        with creation_boundary():
            env = self.make_env(key.task, key.member, key.attempt)
        return [await run_guarded_episode(key, env, self.policy, self.context, self.limits)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRunner:
    """Runs single episodes with a collector's policy, environment and limits."""

    collector: GroupCollector

    async def episode(self, key: EpisodeKey) -> Trajectory:
        (trajectory,) = await self.collector.episodes([key])
        return trajectory


async def run_guarded_episode(
    key: EpisodeKey, env: Env, policy: Policy, context: Context, limits: Limits
) -> Trajectory:
    """Run one episode behind the failure boundary and close its environment however it ends."""
    async with guard_env(env, limits.timeout_s) as guarded, policy.open(key) as session:
        return await run_episode(key, guarded, session, context, limits)
