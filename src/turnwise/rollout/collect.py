"""Many episodes at once: a fixed number in flight, a finished one replaced at once, failures run again."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.core.errors import (
    InfrastructureFailure,
    Outage,
    RewardFailure,
)
from turnwise.core.protocols import Env, Policy
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rollout.context import Context
from turnwise.rollout.episode import run_episode
from turnwise.rollout.failures import creation_boundary, guard_env, run_with_retries
from turnwise.rollout.limits import Limits

MakeEnv = Callable[[Task, int, int], Env]
"""(task, member, attempt) -> a fresh environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedGroups:
    groups: tuple[Group, ...]
    counts: Counter[str]
    """Failed attempts by kind, members given up, those of them that lacked a reward alone, groups dropped."""
    last_failure: Exception | None = None
    """What the last member that was given up broke by."""


DrawCounts = Counter[tuple[tuple[str, int], ...]]
"""How often what belongs together was drawn in a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCollector(ABC):
    """Runs groups of episodes. What runs them is said by those that are made of it."""

    in_flight: int
    attempts: int
    run_seed: int

    @property
    def together(self) -> int:
        """How many tasks in a row belong together: the n-th members of them run, and are run again, as one."""
        return 1

    @abstractmethod
    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        """Runs what belongs together: one key a task, one trajectory a key."""

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        round: int,
        drawn: DrawCounts | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> CollectedGroups:
        """`drawn`: of those who collect more than once in a round; it is counted on."""
        many, counts = self.together, Counter[str]()
        gate = asyncio.Semaphore(max(1, self.in_flight // many))
        total, done = len(tasks) * group_size, 0
        last_failure: Exception | None = None
        drawn = Counter() if drawn is None else drawn

        async def member(tasks: Sequence[Task], index: int) -> Sequence[Trajectory | None]:
            nonlocal done, last_failure
            async with gate:
                found = await self._tried(tasks, index, round, counts)
            if isinstance(found, Exception):
                last_failure = found
                counts["members_given_up"] += len(tasks)
                counts["members_unscored"] += len(tasks) * isinstance(found, RewardFailure)
                return [None] * len(tasks)
            done += len(tasks)
            progress(done, total)
            return found

        try:
            async with asyncio.TaskGroup() as running:
                rows = [
                    [running.create_task(member(each, index)) for index in _numbers(each, group_size, drawn)]
                    for each in (tasks[first : first + many] for first in range(0, len(tasks), many))
                ]
        except ExceptionGroup as failures:  # of the program itself: the first says it, the others say it again
            raise failures.exceptions[0] from None
        results = [[each.result()[place] for each in row] for row in rows for place in range(many)]
        groups = self._groups(tasks, results, group_size, counts)
        if not groups:
            raise Outage(f"every episode failed, none is left to train on; the last failure: {last_failure}")
        return CollectedGroups(groups=groups, counts=+counts, last_failure=last_failure)

    async def _tried(
        self, tasks: Sequence[Task], index: int, round: int, counts: Counter[str]
    ) -> Sequence[Trajectory] | Exception:
        """One member of each of these tasks; the last failure where every attempt broke."""

        async def play(luck: int) -> Sequence[Trajectory]:
            keys = [
                EpisodeKey(run_seed=self.run_seed, round=round, task=task, member=index, attempt=luck) for task in tasks
            ]
            return await self.episodes(keys)

        def broke(failure: Exception) -> None:
            counts["infra_errors" if isinstance(failure, InfrastructureFailure) else "env_errors"] += 1

        return await run_with_retries(self.attempts, play, broke)

    @staticmethod
    def _groups(
        tasks: Sequence[Task], results: list[list[Trajectory | None]], group_size: int, counts: Counter[str]
    ) -> tuple[Group, ...]:
        """Groups go on with the members that are left; one alone has nothing to be compared with."""
        groups = []
        for task, row in zip(tasks, results, strict=True):
            left = tuple(trajectory for trajectory in row if trajectory is not None)
            if len(left) >= min(2, group_size):
                groups.append(Group(task=task, trajectories=left))
            else:
                counts["groups_dropped"] += 1
        return tuple(groups)


def _numbers(tasks: Sequence[Task], group_size: int, drawn: DrawCounts) -> range:
    """Members of a group. Where few tasks are drawn again and again, every group of one has members of its own: equal
    numbers would be equal luck, and the same episodes once more."""
    name = tuple((task.env, task.seed) for task in tasks)
    first = drawn[name] * group_size
    drawn[name] += 1
    return range(first, first + group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector(GroupCollector):
    """Episodes of one policy, each in a world of its own."""

    policy: Policy
    make_env: MakeEnv
    context: Context
    """Stateless: what an episode has is in its turns."""
    limits: Limits

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        (key,) = keys
        with creation_boundary():
            env = self.make_env(key.task, key.member, key.attempt)
        return [await run_guarded_episode(key, env, self.policy, self.context, self.limits)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRunner:
    """Plays as the collector does, but one episode when it is asked for."""

    collector: Collector

    async def episode(self, key: EpisodeKey) -> Trajectory:
        (trajectory,) = await self.collector.episodes([key])
        return trajectory


async def run_guarded_episode(
    key: EpisodeKey, env: Env, policy: Policy, context: Context, limits: Limits
) -> Trajectory:
    """One episode behind the boundary; its environment is closed however it ends."""
    async with guard_env(env, limits.timeout_s) as guarded, policy.open(key) as session:
        return await run_episode(key, guarded, session, context, limits)
