"""Matches: episodes of several agents that wait for each other."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnwise.core.protocols import Env, Policy
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.rollout.collect import GroupCollector, run_guarded_episode
from turnwise.rollout.context import Context
from turnwise.rollout.episode import Limits
from turnwise.rollout.failures import creation_boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One agent's episode in a match."""

    task: Task
    """The match's task from this agent's side."""
    env: Env
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatedCollector(GroupCollector):
    """Base of collectors of matches. If one episode fails, the others are cancelled and all are retried."""

    context: Context
    limits: Limits

    @abstractmethod
    def seats(self, keys: Sequence[EpisodeKey]) -> Sequence[Seat]:
        """Start the match of these episodes. Episodes of other seats are not collected."""

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        with creation_boundary():
            seats = self.seats(keys)
        try:
            async with asyncio.TaskGroup() as match:
                running = [match.create_task(self._play(replace(keys[0], task=seat.task), seat)) for seat in seats]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        tasks = [seat.task for seat in seats]
        return [running[tasks.index(key.task)].result() for key in keys]

    async def _play(self, key: EpisodeKey, seat: Seat) -> Trajectory:
        return await run_guarded_episode(key, seat.env, seat.policy, self.context, self.limits)
