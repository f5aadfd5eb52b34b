"""Games of two sides: how the two episodes of a match run."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turnwise.core.protocols import Env, Policy
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.envs.games.table import as_side, side_of
from turnwise.rollout.collect import GroupCollector, closed_after, making
from turnwise.rollout.context import Context
from turnwise.rollout.limits import Limits

MakeSeats = Callable[[Task, int, int], tuple[Env, Env]]
"""(task, member, attempt) -> the environments of a fresh game's two sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCollector(GroupCollector):
    """A match is two episodes, one a side, which wait for each other's moves.

    They run together or not at all: where one breaks, the other is stopped, and both are run again.
    """

    policy: Policy
    opponent: Policy | None
    """Plays the side that a task is not, which is seen by nobody; None: the policy plays both, and the tasks come in
    twos, as `SidedTasks` draws them."""
    make_seats: MakeSeats
    context: Context
    limits: Limits

    @property
    def together(self) -> int:
        return 2 if self.opponent is None else 1

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        first = keys[0]
        with making():
            seats = self.make_seats(first.task, first.member, first.attempt)
        played = {side_of(key.task) for key in keys}
        try:
            async with asyncio.TaskGroup() as match:
                running = [
                    match.create_task(self._side(replace(first, task=as_side(first.task, side)), seat, side in played))
                    for side, seat in enumerate(seats)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [running[side_of(key.task)].result() for key in keys]

    async def _side(self, key: EpisodeKey, seat: Env, own: bool) -> Trajectory:
        policy = self.policy if own or self.opponent is None else self.opponent
        return await closed_after(key, seat, policy, self.context, self.limits)
