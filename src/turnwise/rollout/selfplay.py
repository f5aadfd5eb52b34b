"""Games of two sides: how the two episodes of a match run."""

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
"""(task, member, attempt) -> the environments of a fresh game's two sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfPlayTasks(TaskSource):
    """Every other task is one of the second side."""

    both: bool
    """The tasks are drawn in twos, the two sides of a match; else the sides of different ones take turns."""
    random_moves: int = 0
    """Of the training tasks: held-out ones begin as the game does."""

    def draw(self, step: int, count: int, start: int = 0, success_counts: SuccessCounts | None = None) -> list[Task]:
        many = 2 if self.both else 1
        drawn = TaskSource.draw(self, step, count // many, start // many, success_counts)
        opened = [replace(task, params={**task.params, "random_moves": self.random_moves}) for task in drawn]
        return alternate_sides([task for task in opened for _ in range(many)], start)


def alternate_sides(tasks: Sequence[Task], start: int = 0) -> list[Task]:
    """The tasks with the sides in turn, counted from `start`."""
    return [as_player(task, number % 2) for number, task in enumerate(tasks, start)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCollector(GroupCollector):
    """A match is two episodes, one a side, which wait for each other's moves.

    They run together or not at all: where one breaks, the other is stopped, and both are run again.
    """

    policy: Policy
    opponent: Policy | None
    """Plays the side that a task is not, which is seen by nobody; None: the policy plays both, and the tasks come in
    twos, as `SelfPlayTasks` draws them."""
    make_match: MakeMatch
    context: Context
    limits: Limits

    @property
    def together(self) -> int:
        return 2 if self.opponent is None else 1

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        first = keys[0]
        with creation_boundary():
            seats = self.make_match(first.task, first.member, first.attempt)
        played = {player_of(key.task) for key in keys}
        try:
            async with asyncio.TaskGroup() as match:
                running = [
                    match.create_task(
                        self._side(replace(first, task=as_player(first.task, side)), seat, side in played)
                    )
                    for side, seat in enumerate(seats)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [running[player_of(key.task)].result() for key in keys]

    async def _side(self, key: EpisodeKey, seat: Env, own: bool) -> Trajectory:
        policy = self.policy if own or self.opponent is None else self.opponent
        return await run_guarded_episode(key, seat, policy, self.context, self.limits)
