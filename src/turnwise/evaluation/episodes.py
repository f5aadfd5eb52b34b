"""Run evaluation episodes, one or several per task, and compute their metrics."""

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
from turnwise.evaluation.statistics import pass_at_k, wilson_interval_by_task
from turnwise.rollout.chat_episode import count_sampled_tokens
from turnwise.rollout.collect import GroupCollector
from turnwise.rollout.failures import DroppedEpisodes, check_dropped, run_with_retries

TaskId = int
"""Hash of a task, unique across environments."""


def task_id(task: Task) -> TaskId:
    return address(*task.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Episodes of one policy on held-out tasks."""

    trajectories: tuple[Trajectory, ...]
    """The finished episodes."""
    dropped: int
    """Episodes that failed on every attempt. No mean includes them."""
    dropped_reason: str = ""
    """Failure of the last dropped episode."""

    @property
    def episodes(self) -> int:
        """Number of finished episodes."""
        return len(self.trajectories)

    @property
    def tries(self) -> int:
        """Largest number of episodes of a task."""
        return max(map(len, self.by_task().values()), default=0)

    def by_task(self) -> Mapping[TaskId, list[Trajectory]]:
        """Return the episodes of each task."""
        tasks: dict[TaskId, list[Trajectory]] = {}
        for trajectory in self.trajectories:
            tasks.setdefault(task_id(trajectory.task), []).append(trajectory)
        return tasks

    @property
    def success(self) -> float:
        """Mean of the per-task success rates, which is pass@1; NaN without episodes."""
        return fmean(rates) if (rates := self._rates()) else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval, with the effective sample size of repeated tries."""
        return wilson_interval_by_task(self._rates(), self.episodes)

    def pass_at(self, k: int) -> float:
        """Return pass@k over the tasks with at least k tries."""
        counts = [(len(tries), _successes(tries)) for tries in self.by_task().values() if len(tries) >= k]
        return fmean(pass_at_k(n, c, k) for n, c in counts) if counts else math.nan

    def metrics(self) -> dict[str, float]:
        """Return the metrics by their names without `eval/`."""
        low, high = self.interval
        turns = [turn for trajectory in self.trajectories for turn in trajectory.turns if not turn.is_summary]
        metrics = {
            "success": self.success,
            "success_low": low,
            "success_high": high,
            "episodes": self.episodes,
            "dropped": self.dropped,
            "reward": self._mean([trajectory.total_reward for trajectory in self.trajectories]),
            "turns": len(turns) / max(1, self.episodes),
            "invalid": sum(turn.invalid for turn in turns) / max(1, len(turns)),
            "cut": sum(turn.stop is Stop.LENGTH for turn in turns) / max(1, len(turns)),
            "sampled_tokens": self._mean([count_sampled_tokens(trajectory) for trajectory in self.trajectories]),
        }
        return metrics | {f"pass_at_{k}": self.pass_at(k) for k in reported_ks(self.tries)}

    def _rates(self) -> list[float]:
        return [_successes(tries) / len(tries) for tries in self.by_task().values()]

    @staticmethod
    def _mean(values: Sequence[float | None]) -> float:
        """Return the mean; NaN if there are no values or one is unknown."""
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else math.nan


def _successes(trajectories: Sequence[Trajectory]) -> int:
    return sum(trajectory.status.succeeded for trajectory in trajectories)


def reported_ks(tries: int) -> list[int]:
    """Return the k for which pass@k is reported: 2, 4, 8, ... and `tries`. pass@1 is the success rate."""
    doubled = [2**power for power in range(1, tries.bit_length()) if 2**power < tries]
    return [*doubled, tries] if tries > 1 else []


async def evaluate(
    collector: GroupCollector, tasks: Sequence[Task], progress: Callable[[int, int], None] = lambda done, total: None
) -> Evaluation:
    """Run one episode per task. `round` is always 0, so policies compared on equal tasks get equal random numbers."""
    collected = await collector.collect(tasks, group_size=1, round=0, progress=progress)
    trajectories = tuple(trajectory for group in collected.groups for trajectory in group.trajectories)
    return checked_evaluation(trajectories, len(tasks) - collected.unplayed, collected.last_failure)


def checked_evaluation(trajectories: tuple[Trajectory, ...], total: int, last_failure: Exception | None) -> Evaluation:
    """Return the evaluation; raise Outage if too many of its `total` episodes are missing."""
    dropped, reason = total - len(trajectories), str(last_failure or "")
    counts = DroppedEpisodes(dropped=dropped, total=total, reason=reason, cause=last_failure)
    check_dropped(counts, purpose="evaluate")
    return Evaluation(trajectories=trajectories, dropped=dropped, dropped_reason=reason)


RUN_SEED = ROUND = 0
"""The same in all evaluations, so that agents compared on equal tasks get equal random numbers."""
MAX_FAILURES_IN_A_ROW = 8
"""Consecutive episodes that fail on every attempt before the evaluation stops."""

TaskTry = tuple[Task, int]
"""A task and the number of the try."""


class EpisodeRunner(Protocol):
    async def episode(self, key: EpisodeKey) -> Trajectory: ...


def list_tries(tasks: Iterable[Task], tries: int) -> list[TaskTry]:
    """Return all tries, the first of every task first, so that an interrupted evaluation covers most tasks."""
    tasks = list(tasks)
    return [(task, number) for number in range(tries) for task in tasks]


async def run_episodes(
    runner: EpisodeRunner,
    tries: Sequence[TaskTry],
    *,
    in_flight: int,
    attempts: int,
    on_finished: Callable[[Trajectory], None],
) -> list[Exception]:
    """Run an episode per try and return the last failure of each one that failed on all `attempts` attempts.

    `on_finished` receives each trajectory as soon as it ends. If MAX_FAILURES_IN_A_ROW episodes fail in a row, raise
    Outage: an endpoint that is gone should not receive thousands of requests.
    """
    waiting = iter(tries)
    failures, in_a_row = list[Exception](), 0

    async def work() -> None:
        nonlocal in_a_row
        for task, member in waiting:
            result = await _run_with_retries(runner, task, member, attempts)
            if isinstance(result, Trajectory):
                in_a_row = 0
                on_finished(result)
                continue
            failures.append(result)
            in_a_row += 1
            if in_a_row >= MAX_FAILURES_IN_A_ROW:
                raise Outage(f"{in_a_row} episodes in a row failed. Fix the cause of the last failure: {result}")

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(in_flight, len(tries))):
                workers.create_task(work())
    except ExceptionGroup as errors:  # all have the same cause: one is enough to report
        raise errors.exceptions[0] from None
    return failures


async def _run_with_retries(runner: EpisodeRunner, task: Task, member: int, attempts: int) -> Trajectory | Exception:
    """Return the episode, or the last failure if every attempt failed."""

    def play(attempt: int) -> Awaitable[Trajectory]:
        return runner.episode(EpisodeKey(run_seed=RUN_SEED, round=ROUND, task=task, member=member, attempt=attempt))

    return await run_with_retries(attempts, play)
