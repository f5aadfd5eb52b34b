"""Evaluate the policy of a run on held-out tasks, record it, and keep the best checkpoint."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from turnwise.core.task import Task
from turnwise.core.trajectory import TokenName, Trajectory
from turnwise.evaluation.episodes import Evaluation, evaluate, task_id
from turnwise.record.rows import VALIDATION, EvaluationRecord, select
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import trajectory_to_row
from turnwise.report.formatting import first_line
from turnwise.report.progress import Progress
from turnwise.rollout.collect import GroupCollector
from turnwise.training.checkpoints import SaveCheckpoints
from turnwise.training.step import Part
from turnwise.training.step_record import StepTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Evaluates the policy of a run, and records the episodes and their metrics in its folder."""

    collector: GroupCollector
    folder: RunFolder
    progress: Progress
    decode: Callable[[Sequence[int]], str]
    name_token: Callable[[int], TokenName]
    records_trajectories: bool

    async def evaluate(self, name: str, tasks: Sequence[Task], step: int) -> Evaluation:
        """Run an episode per task and record them."""
        timer = StepTimer()
        evaluation = await evaluate(self.collector, tasks, lambda done, total: self.progress.phase(name, done, total))
        self.record(name, tasks, evaluation, step, timer)
        return evaluation

    def record(self, name: str, tasks: Sequence[Task], evaluation: Evaluation, step: int, timer: StepTimer) -> None:
        """Record an evaluation that began with the timer. The metrics are last: one with metrics is complete."""
        timer.lap("eval")
        if self.records_trajectories:
            self._write_trajectories(name, tasks, evaluation.trajectories, step)
            timer.lap("record")
        by_environment = success_by_environment(evaluation.trajectories)
        record = EvaluationRecord(
            step=step,
            name=name,
            metrics=evaluation.metrics() | by_environment,
            time=timer.seconds(),
            dropped_reason=first_line(evaluation.dropped_reason) if evaluation.dropped else None,
        )
        self.folder.append_metrics(record)

    def _write_trajectories(
        self, name: str, tasks: Sequence[Task], trajectories: Sequence[Trajectory], step: int
    ) -> None:
        numbers = {task_id(task): number for number, task in enumerate(tasks)}
        rows = [
            trajectory_to_row(
                trajectory, step=step, group=numbers[task_id(trajectory.task)], decode=self.decode, evaluation=name
            )
            for trajectory in trajectories
        ]
        self.folder.write_trajectories(step, rows, self.name_token, evaluation=name)


def recorded_success(folder: RunFolder, step: int) -> float | None:
    """Return the success of this step's validation in the metrics; None if there is none, NaN without episodes."""
    for record in select(folder.read_records(), EvaluationRecord):
        if record.name == VALIDATION and record.step == step:
            return math.nan if record.success is None else record.success
    return None


def success_by_environment(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the success rate in each environment, and of each role, if there are several."""
    names = sorted({trajectory.task.label for trajectory in trajectories})
    if len(names) < 2:
        return {}
    solved = {name: [one.status.succeeded for one in trajectories if one.task.label == name] for name in names}
    return {f"success/{name}": fmean(successes) for name, successes in solved.items()}


class Validation(Part):
    """Measures success every n steps; the checkpoint with the highest is kept as the best."""

    name = "validation"

    def __init__(
        self,
        evaluate: Callable[[int], Awaitable[float | None]],
        folder: RunFolder,
        *,
        every: int,
        steps: int,
        best: SaveCheckpoints,
    ) -> None:
        """`evaluate` records the success after a step and returns it; `every` 0: never; `steps`: of the whole run.

        `best` saves the best checkpoint.
        """
        self._evaluate, self._folder, self._every, self._steps, self._best = evaluate, folder, every, steps, best
        self.best_success: float | None = None
        """Success of the best checkpoint."""

    def state(self) -> dict[str, float | None]:
        return {"best_success": self.best_success}

    def load_state(self, state: dict[str, float | None]) -> None:
        self.best_success = state["best_success"]

    async def begin(self, step: int) -> None:
        """Finish a step that was stopped before its validation ended or its checkpoint was saved."""
        if self._is_due(step):
            await self._validate(step, recorded_success(self._folder, step))

    async def finish(self, step: int) -> None:
        if self._is_due(step):
            await self._validate(step, None)

    def _is_due(self, step: int) -> bool:
        """The caller of the loop evaluates before and after training."""
        return self._every > 0 and 0 < step < self._steps and step % self._every == 0

    async def _validate(self, step: int, success: float | None) -> None:
        if success is None:
            success = await self._evaluate(step)
        if success is not None and self._is_best(success):
            self.best_success = success
            self._best.save(step, best=True)

    def _is_best(self, success: float) -> bool:
        """NaN, of a validation without scored episodes, never is."""
        best = self.best_success
        return success > (-math.inf if best is None or math.isnan(best) else best)
