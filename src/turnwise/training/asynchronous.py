"""Asynchronous training: the next steps' groups are rolled out while the learner trains on this one's.

    rollouts  | step 0 | step 1 | step 2 | ...          max_staleness 1: step 2 starts when step 0 is trained
    learner            | step 0 | step 1 | ...

A step trains on the tasks that it would train on without asynchrony, whole and in order. So no group is dropped or
preferred for its length, a resumed run draws the same tasks again, and no token is older than `max_staleness` versions
when its step starts.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from turnwise.rollout.collect import DrawCounts
from turnwise.rollout.tasks import SuccessCounts
from turnwise.training.rollout_stage import RolloutRound, RolloutStage, ShowProgress

_T = TypeVar("_T")


@dataclass(slots=True)
class _RunningStep:
    task: asyncio.Task[RolloutRound]
    success_counts: SuccessCounts
    """Results of tasks when its tasks were drawn."""
    show: ShowProgress | None = None
    """Set while the loop waits for this step."""
    progress: tuple[int, int] = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncRolloutStage(RolloutStage):
    """Rolls out the first round of the coming steps in the background; later rounds and baselines when they are due."""

    max_staleness: int
    steps: int
    """Training steps of the run."""
    in_flight: int
    _running: dict[int, _RunningStep] = field(default_factory=dict, init=False)
    """By step."""
    _gate: asyncio.Semaphore = field(init=False)
    """Shared by all running steps: earlier ones go first."""

    def __post_init__(self) -> None:
        gate = asyncio.Semaphore(max(1, self.in_flight // self.collector.tasks_per_match))
        object.__setattr__(self, "_gate", gate)

    def admit(
        self, done: int, success_counts: SuccessCounts, drawn_with: Mapping[str, SuccessCounts] | None = None
    ) -> None:
        """Start the steps that the staleness bound allows after `done` trained steps.

        `success_counts`: results of tasks so far, for a curriculum; `drawn_with`: those of steps that a stopped run had
        started, which draw the same tasks again.
        """
        for step in range(done, min(done + self.max_staleness + 1, self.steps)):
            if step not in self._running:
                self._start(step, (drawn_with or {}).get(str(step), success_counts))

    def _start(self, step: int, success_counts: SuccessCounts) -> None:
        def show(phase: str, done: int, total: int) -> None:
            running.progress = done, total
            if running.show is not None:
                running.show(phase, done, total)

        rollout = self.roll_out(step, 0, Counter(), show, success_counts, self._gate)
        running = _RunningStep(asyncio.create_task(rollout), success_counts)
        self._running[step] = running

    async def next_round(
        self, step: int, number: int, drawn: DrawCounts, show: ShowProgress, success_counts: SuccessCounts | None
    ) -> RolloutRound:
        """Wait for the step's first round; roll out a later one, whose need was not known before, without waiting."""
        if number > 0:
            return await self.roll_out(step, number, drawn, show, success_counts)
        if step not in self._running:
            self._start(step, success_counts or {})
        running = self._running[step]
        running.show = show
        show("rollout", *running.progress)
        found = await asyncio.shield(running.task)
        del self._running[step]
        return found

    def drawn_with(self, done: int) -> dict[str, dict[str, tuple[float, float]]]:
        if self.tasks.curriculum is None:
            return {}
        return {str(step): dict(each.success_counts) for step, each in self._running.items() if step >= done}

    async def close(self) -> None:
        running = [each.task for each in self._running.values()]
        self._running.clear()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class LearnerThread:
    """Runs the learner's part of a step in a thread, on a CUDA stream of its own, so that episodes continue."""

    def __init__(self) -> None:
        self.cancelled = False
        """True if the caller was cancelled during the step. The step still completes: half of one cannot be saved."""
        self._stream = torch.cuda.Stream() if torch.cuda.is_available() else None

    async def run(self, call: Callable[[], _T]) -> _T:
        running = asyncio.ensure_future(asyncio.to_thread(self._call, call))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.cancelled = True
            return await running

    def _call(self, call: Callable[[], _T]) -> _T:
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            result = call()
        if self._stream is not None:
            self._stream.synchronize()
        return result
