"""Many episodes of one agent, each handed over as soon as it is done, so that a stop loses only those under way."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from turnwise.core.errors import Outage
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.rollout.attempts import tried

RUN_SEED = ROUND = 0
"""Of all evaluations, so that agents compared on equal tasks meet equal random numbers."""
BROKEN_IN_A_ROW = 8
"""Episodes that break one after the other, each as often as it was tried, before the evaluation stops."""

Wanted = tuple[Task, int]
"""A task, and which of its tries."""


class Player(Protocol):
    async def episode(self, key: EpisodeKey) -> Trajectory: ...


def all_tries(tasks: Iterable[Task], tries: int) -> list[Wanted]:
    """First tries first: what is there after a stop holds as many tasks as can be."""
    tasks = list(tasks)
    return [(task, number) for number in range(tries) for task in tasks]


async def play_episodes(
    player: Player,
    wanted: Sequence[Wanted],
    *,
    in_flight: int,
    attempts: int,
    finished: Callable[[Trajectory], None],
) -> list[Exception]:
    """Plays each once, and tells of those that broke `attempts` times, and are missing, what broke them last.

    `finished` gets each trajectory when it ends, in the order in which they end. Where everything breaks, it stops
    early, with the last failure: an endpoint that went away is not asked thousands of times.
    """
    waiting = iter(wanted)
    failures, in_a_row = list[Exception](), 0

    async def work() -> None:
        nonlocal in_a_row
        for task, member in waiting:
            found = await _played(player, task, member, attempts)
            if isinstance(found, Trajectory):
                in_a_row = 0
                finished(found)
                continue
            failures.append(found)
            in_a_row += 1
            if in_a_row >= BROKEN_IN_A_ROW:
                raise Outage(f"{in_a_row} episodes in a row broke: {found}: mend that first")

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(in_flight, len(wanted))):
                workers.create_task(work())
    except ExceptionGroup as several:  # the first says it, the others say it again
        raise several.exceptions[0] from None
    return failures


async def _played(player: Player, task: Task, member: int, attempts: int) -> Trajectory | Exception:
    """The episode, or the last failure where every attempt broke."""

    def play(luck: int) -> Awaitable[Trajectory]:
        return player.episode(EpisodeKey(run_seed=RUN_SEED, round=ROUND, task=task, member=member, attempt=luck))

    return await tried(attempts, play)
