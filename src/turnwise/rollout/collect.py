"""Many episodes at once: a fixed number in flight, a finished one replaced at once, failures run again."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import Message
from turnwise.core.protocols import Env, Observation, Policy, StepResult
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rollout.context import Context
from turnwise.rollout.episode import run_episode
from turnwise.rollout.limits import Limits

MakeEnv = Callable[[Task, int, int], Env]
"""(task, member, attempt) -> a fresh environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    groups: tuple[Group, ...]
    counts: Counter[str]
    """Failed attempts by kind, members given up, groups dropped."""


@contextmanager
def attributed(where: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """The boundary: whatever an environment raises is the environment's failure, never the run's or the agent's."""
    typed: tuple[type[Exception], ...] = (EnvironmentFailure, InfrastructureFailure, *passing)
    try:
        yield
    except typed:
        raise
    except Exception as error:
        raise EnvironmentFailure(f"{where}: {type(error).__name__}: {error}") from error


class GuardedEnv:
    """An environment behind that boundary. Closing it is bounded in time, as the episode is."""

    def __init__(self, env: Env, close_timeout_s: float) -> None:
        self._env, self._close_timeout_s = env, close_timeout_s

    async def start(self) -> Observation:
        with attributed("start"):
            return await self._env.start()

    async def step(self, action: Message) -> StepResult:
        with attributed("step"):
            return await self._env.step(action)

    async def close(self) -> None:
        with attributed("close"):
            async with asyncio.timeout(self._close_timeout_s):
                await self._env.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Runs groups of episodes of one policy. `context` is stateless: what an episode has is in its turns."""

    policy: Policy
    make_env: MakeEnv
    context: Context
    limits: Limits
    in_flight: int
    attempts: int
    run_seed: int

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        round: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Collected:
        gate, counts = asyncio.Semaphore(self.in_flight), Counter[str]()
        total, done = len(tasks) * group_size, 0
        last_failure: Exception | None = None

        async def member(task: Task, index: int) -> Trajectory | None:
            nonlocal done, last_failure
            async with gate:
                for attempt in range(self.attempts):
                    key = EpisodeKey(run_seed=self.run_seed, round=round, task=task, member=index, attempt=attempt)
                    try:
                        trajectory = await self._episode(key)
                    except (EnvironmentFailure, InfrastructureFailure) as failure:
                        last_failure = failure
                        kind = "env_errors" if isinstance(failure, EnvironmentFailure) else "infra_errors"
                        counts[kind] += 1
                        continue
                    done += 1
                    progress(done, total)
                    return trajectory
            counts["members_given_up"] += 1
            return None

        try:
            async with asyncio.TaskGroup() as running:
                rows = [[running.create_task(member(task, index)) for index in range(group_size)] for task in tasks]
        except ExceptionGroup as failures:  # of the program itself: the first says it, the others say it again
            raise failures.exceptions[0] from None
        results = [[each.result() for each in row] for row in rows]
        groups = self._groups(tasks, results, group_size, counts)
        if not groups:
            raise UserError(f"every episode failed, none is left to train on; the last failure: {last_failure}")
        return Collected(groups=groups, counts=counts)

    async def _episode(self, key: EpisodeKey) -> Trajectory:
        env = GuardedEnv(self._made(key), self.limits.timeout_s)
        try:
            async with self.policy.open(key) as session:
                trajectory = await run_episode(key, env, session, self.context, self.limits)
        except BaseException:
            with suppress(EnvironmentFailure, InfrastructureFailure):  # the first failure is the one to tell
                await env.close()
            raise
        await env.close()
        return trajectory

    def _made(self, key: EpisodeKey) -> Env:
        with attributed("making it", passing=(UserError,)):  # what a user gave is not mended by trying again
            return self.make_env(key.task, key.member, key.attempt)

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
