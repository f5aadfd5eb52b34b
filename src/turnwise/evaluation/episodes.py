"""Evaluation: held-out tasks, once or several times each, and what they say of an agent."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from turnwise.core.errors import Outage
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Stop, Trajectory
from turnwise.evaluation.statistics import pass_at_k, wilson_by_task
from turnwise.rollout.chat_episode import count_sampled_tokens
from turnwise.rollout.collect import Collector
from turnwise.rollout.failures import DroppedEpisodes, check_dropped, run_with_retries

TaskId = int
"""What tells tasks apart, those of several environments too."""


def task_id(task: Task) -> TaskId:
    return address(*task.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    trajectories: tuple[Trajectory, ...]
    errors: int
    """Episodes that broke and could not be run again: they are in no mean."""

    @property
    def episodes(self) -> int:
        return len(self.trajectories)

    @property
    def tries(self) -> int:
        """Episodes of the task that has most."""
        return max(map(len, self.by_task().values()), default=0)

    def by_task(self) -> Mapping[TaskId, list[Trajectory]]:
        tasks: dict[TaskId, list[Trajectory]] = {}
        for trajectory in self.trajectories:
            tasks.setdefault(task_id(trajectory.task), []).append(trajectory)
        return tasks

    @property
    def success(self) -> float:
        """The mean of the tasks' success rates, which is pass@1."""
        return fmean(rates) if (rates := self._rates()) else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson, 95 %; tries of one task count as far as they differ."""
        return wilson_by_task(self._rates(), self.episodes)

    def pass_at(self, k: int) -> float:
        """Over the tasks that have at least k tries."""
        counts = [(len(tries), _successes(tries)) for tries in self.by_task().values() if len(tries) >= k]
        return fmean(pass_at_k(n, c, k) for n, c in counts) if counts else math.nan

    def metrics(self) -> dict[str, float]:
        low, high = self.interval
        turns = [turn for trajectory in self.trajectories for turn in trajectory.turns if not turn.is_summary]
        found = {
            "eval/success": self.success,
            "eval/success_low": low,
            "eval/success_high": high,
            "eval/episodes": self.episodes,
            "eval/errors": self.errors,
            "eval/reward": self._mean([each.total_reward for each in self.trajectories]),
            "eval/turns": len(turns) / max(1, self.episodes),
            "eval/invalid": sum(turn.invalid for turn in turns) / max(1, len(turns)),
            "eval/cut": sum(turn.stop is Stop.LENGTH for turn in turns) / max(1, len(turns)),
            "eval/sampled_tokens": self._mean([count_sampled_tokens(each) for each in self.trajectories]),
        }
        return found | {f"eval/pass_at_{k}": self.pass_at(k) for k in tries_shown(self.tries)}

    def _rates(self) -> list[float]:
        return [_successes(tries) / len(tries) for tries in self.by_task().values()]

    @staticmethod
    def _mean(values: Sequence[float | None]) -> float:
        """NaN where there is nothing, or where one is not known."""
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else math.nan


def _successes(trajectories: Sequence[Trajectory]) -> int:
    return sum(trajectory.status.succeeded for trajectory in trajectories)


def tries_shown(tries: int) -> list[int]:
    """The k of pass@k that are told: 2, 4, 8, ... and all tries; pass@1 is the success rate."""
    doubled = [2**power for power in range(1, tries.bit_length()) if 2**power < tries]
    return [*doubled, tries] if tries > 1 else []


async def evaluate(
    collector: Collector, tasks: Sequence[Task], progress: Callable[[int, int], None] = lambda done, total: None
) -> Evaluation:
    """One episode a task. `round` is 0, so that policies compared on equal tasks meet equal random numbers."""
    collected = await collector.collect(tasks, group_size=1, round=0, progress=progress)
    trajectories = tuple(trajectory for group in collected.groups for trajectory in group.trajectories)
    errors = collected.counts["members_given_up"]
    check_dropped(DroppedEpisodes(dropped=errors, total=len(tasks), reason=str(collected.last_failure)))
    return Evaluation(trajectories=trajectories, errors=errors)


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
            found = await _play_with_retries(player, task, member, attempts)
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


async def _play_with_retries(player: Player, task: Task, member: int, attempts: int) -> Trajectory | Exception:
    """The episode, or the last failure where every attempt broke."""

    def play(luck: int) -> Awaitable[Trajectory]:
        return player.episode(EpisodeKey(run_seed=RUN_SEED, round=ROUND, task=task, member=member, attempt=luck))

    return await run_with_retries(attempts, play)
