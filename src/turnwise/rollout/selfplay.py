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
from turnwise.rollout.failures import creation_boundary
from turnwise.rollout.limits import Limits
from turnwise.rollout.tasks import SuccessCounts, TaskSource

MakeMatch = Callable[[Task, int, int], tuple[Env, Env]]
"""(task, member, attempt) -> the environments of a new game's two players."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfPlayTasks(TaskSource):
    """Tasks that alternate between the first and the second player."""

    both: bool
    """Draw tasks in pairs, the two players of one match; False: alternate players over different tasks."""
    random_moves: int = 0
    """Random opening moves of training tasks; held-out tasks start from the game's own start."""

    def draw(self, step: int, count: int, start: int = 0, success_counts: SuccessCounts | None = None) -> list[Task]:
        players = 2 if self.both else 1
        drawn = TaskSource.draw(self, step, count // players, start // players, success_counts)
        tasks = [replace(task, params={**task.params, "random_moves": self.random_moves}) for task in drawn]
        return alternate_players([task for task in tasks for _ in range(players)], start)


def alternate_players(tasks: Sequence[Task], start: int = 0) -> list[Task]:
    """Assign the two players to the tasks in turn, counted from `start`."""
    return [as_player(task, number % 2) for number, task in enumerate(tasks, start)]


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
