"""Self-play: tasks and matches of two-player games."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turnwise.core.protocols import Env, Policy
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.envs.games.selfplay import as_player, player_of
from turnwise.rollout.collect import GroupCollector, run_guarded_episode
from turnwise.rollout.context import Context
from turnwise.rollout.episode import Limits
from turnwise.rollout.failures import creation_boundary

MakeMatch = Callable[[Task, int, int], tuple[Env, Env]]
"""(task, member, attempt) -> the environments of a new game's two players."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCollector(GroupCollector):
    """Runs matches: two episodes, one per player, which wait for each other's moves.

    If one episode fails, the other is cancelled and both are retried.
    """

    policy: Policy
    opponent: Policy | None
    """Policy of the other player, whose episode is not collected. None: the policy plays both, with tasks in pairs as
    drawn by `SelfPlayTasks`."""
    make_match: MakeMatch
    context: Context
    limits: Limits

    @property
    def tasks_per_match(self) -> int:
        return 2 if self.opponent is None else 1

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        first = keys[0]
        with creation_boundary():
            envs = self.make_match(first.task, first.member, first.attempt)
        collected = {player_of(key.task) for key in keys}
        try:
            async with asyncio.TaskGroup() as match:
                running = [
                    match.create_task(
                        self._run_player(replace(first, task=as_player(first.task, player)), env, player in collected)
                    )
                    for player, env in enumerate(envs)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [running[player_of(key.task)].result() for key in keys]

    async def _run_player(self, key: EpisodeKey, env: Env, collected: bool) -> Trajectory:
        policy = self.policy if collected or self.opponent is None else self.opponent
        return await run_guarded_episode(key, env, policy, self.context, self.limits)
