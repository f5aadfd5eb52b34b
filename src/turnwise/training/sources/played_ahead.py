"""Asynchronous training: the next steps' groups are rolled out while the learner trains on this one's.

    rollouts  | step 0 | step 1 | step 2 | ...          max_staleness 1: step 2 starts when step 0 is trained
    learner            | step 0 | step 1 | ...

A step trains on the tasks that it would train on without asynchrony, whole and in order. So no group is dropped or
preferred for its length, a resumed run draws the same tasks again, and no token is older than `max_staleness` versions
when its step starts.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.concurrency.spans import SpanLog
from turnwise.record.metrics import staleness_metrics
from turnwise.rollout.tasks import SuccessCounts
from turnwise.training.sources.played import Played, RolloutRound
from turnwise.training.step import Metrics, Part, Rollout, ShowProgress, TrainedStep


@dataclass(slots=True)
class _RunningStep:
    task: asyncio.Task[RolloutRound]
    success_counts: SuccessCounts
    """Results of tasks when its tasks were drawn."""
    show: ShowProgress | None = None
    """Set while the loop waits for this step."""
    progress: tuple[int, int] = (0, 1)


class PlayedAhead(Part):
    """Plays the first round of the coming steps in the background; later rounds and baselines when they are due."""

    name = "started_steps"

    def __init__(
        self, played: Played, *, max_staleness: int, steps: int, in_flight: int, spans: SpanLog | None = None
    ) -> None:
        """`steps`: training steps of the run. `spans`: gets the times of the steps' rollouts."""
        self._played, self._spans = played, spans
        self._max_staleness, self._steps = max_staleness, steps
        self._running: dict[int, _RunningStep] = {}
        """By step."""
        self._cancelled: list[asyncio.Task[RolloutRound]] = []
        self._drawn_with: Mapping[str, SuccessCounts] = {}
        """Results of tasks with which a stopped run had drawn the tasks of its started steps."""
        self._gate = asyncio.Semaphore(max(1, in_flight // played.collector.tasks_per_match))
        """Shared by all running steps: earlier ones go first."""

    async def groups(self, step: int) -> Rollout:
        """Wait for the step's first round. A later one, whose need was not known before, is rolled out now."""
        if step not in self._running:
            self._start(step)
        running = self._running[step]
        running.show = self._played.show
        running.show("rollout", *running.progress)
        round = await asyncio.shield(running.task)
        del self._running[step]
        return await self._played.complete(step, round)

    def state(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """Return the results with which the curriculum drew the tasks of the started steps."""
        if self._played.tasks.curriculum is None:
            return {}
        return {
            str(step): {name: list(counts) for name, counts in running.success_counts.items()}
            for step, running in self._running.items()
        }

    def load_state(self, state: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """A step that a stopped run had started draws the same tasks again."""
        self._drawn_with = {
            step: {name: (won, tries) for name, (won, tries) in counts.items()} for step, counts in state.items()
        }

    async def begin(self, step: int) -> None:
        await self.finish(step)
        self._drawn_with = {}

    async def finish(self, step: int) -> None:
        """Start the steps that the staleness bound allows after `step` trained steps."""
        for coming in range(step, min(step + self._max_staleness + 1, self._steps)):
            if coming not in self._running:
                self._start(coming)

    def _start(self, step: int) -> None:
        def show(phase: str, done: int, total: int) -> None:
            running.progress = done, total
            if running.show is not None:
                running.show(phase, done, total)

        counts = self._drawn_with.get(str(step), self._played.results.counts)
        rollout = self._played.roll_out(step, 0, Counter(), counts, show, self._gate)
        running = _RunningStep(asyncio.create_task(rollout), counts)
        self._running[step] = running
        if (spans := self._spans) is not None:
            lane = f"rollouts {step % (self._max_staleness + 1) + 1}"
            spans.switch(lane, f"step {step + 1}")
            running.task.add_done_callback(lambda _: spans.switch(lane, None))

    def record(self, trained: TrainedStep) -> Metrics:
        return staleness_metrics(trained.rollout.kept, version=trained.number - 1)

    def restart(self) -> None:
        """Cancel the started steps: they are repeated with other weights."""
        for running in self._running.values():
            running.task.cancel()
            self._cancelled.append(running.task)
        self._running.clear()

    async def close(self) -> None:
        self.restart()
        await asyncio.gather(*self._cancelled, return_exceptions=True)
        self._cancelled.clear()
