"""Records of a training step: timings, evaluations, and rows of trajectories with token statistics."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from turnwise.core.protocols import EngineStats
from turnwise.core.samples import Batch, Sample, TrainSample
from turnwise.core.task import Task
from turnwise.core.trajectory import Group, TokenName, Trajectory
from turnwise.evaluation.episodes import Evaluation, evaluate, task_id
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import TOKEN_COLUMNS, trajectory_to_row
from turnwise.report.formatting import first_line
from turnwise.report.progress import Progress
from turnwise.rollout.collect import GroupCollector
from turnwise.training.estimate import Estimate

TOKEN_SCORES = {"token_logprobs": "learner_logprobs", "token_entropies": "entropies"}
"""Values per token from `Learner.forward_backward`, and the names under which they are recorded."""


class TokenStatistics:
    """Values of each sampled token in the first epoch, by sample. Samples must outlive it: they are keyed by id."""

    def __init__(self) -> None:
        self._columns: dict[int, dict[str, Tensor]] = {}

    def add(self, samples: Sequence[TrainSample], batch: Batch, scores: Mapping[str, Tensor]) -> None:
        """Add the values of a batch. Later epochs are ignored: the policy has trained on the tokens by then."""
        for column, name in TOKEN_SCORES.items():
            if column in scores:  # missing while only the critic is trained
                for index, values in zip(batch.order, scores[column].split(batch.counts), strict=True):
                    self._columns.setdefault(id(samples[index].sample), {}).setdefault(name, values)

    def of(self, sample: Sample) -> dict[str, Tensor]:
        """Return the columns of a sample, [K] each; empty if it was not trained on."""
        return {name: values.cpu() for name, values in self._columns.get(id(sample), {}).items()}


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

    def record(self, name: str, tasks: Sequence[Task], evaluation: Evaluation, step: int, timer: "StepTimer") -> None:
        """Record an evaluation that began with the timer. The metrics are last: one with metrics is complete."""
        timer.lap("eval")
        if self.records_trajectories:
            self._write_trajectories(name, tasks, evaluation.trajectories, step)
            timer.lap("record")
        by_environment = success_by_environment(evaluation.trajectories)
        row: dict[str, Any] = {
            "step": step,
            "eval/name": name,
            **evaluation.metrics(),
            **by_environment,
            **timer.metrics(),
        }
        if evaluation.dropped:
            row["eval/dropped_reason"] = first_line(evaluation.dropped_reason)
        self.folder.append_metrics(row)

    def _write_trajectories(
        self, name: str, tasks: Sequence[Task], trajectories: Sequence[Trajectory], step: int
    ) -> None:
        numbers = {task_id(task): number for number, task in enumerate(tasks)}
        rows = [
            trajectory_to_row(each, step=step, group=numbers[task_id(each.task)], decode=self.decode, evaluation=name)
            for each in trajectories
        ]
        self.folder.write_trajectories(step, rows, self.name_token, evaluation=name)


def recorded_success(folder: RunFolder, step: int) -> float | None:
    """Return the success of this step's validation in the metrics; None if there is none."""
    for row in folder.read_metrics():
        if row.get("eval/name") == "validation" and row["step"] == step:
            return math.nan if row["eval/success"] is None else float(row["eval/success"])
    return None


def success_by_environment(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the success rate in each environment if there are several."""
    names = sorted({trajectory.task.env for trajectory in trajectories})
    won = {name: [each.status.succeeded for each in trajectories if each.task.env == name] for name in names}
    return {f"eval/success/{name}": sum(each) / len(each) for name, each in won.items()} if len(names) > 1 else {}


class StepTimer:
    """Seconds of each phase of a step."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = self._last = now()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._now()
        self._laps[name] = now - self._last
        self._last = now

    def add(self, name: str, seconds: float) -> None:
        """Count a phase that was over before this timer was created."""
        self._laps[name] = seconds
        self._began -= seconds

    def metrics(self, tokens: float | None = None) -> dict[str, float]:
        total = self._now() - self._began
        out = {f"time/{name}_s": seconds for name, seconds in self._laps.items()} | {"time/total_s": total}
        return out if tokens is None else out | {"time/tokens_per_s": tokens / total}


class EngineTimer:
    """Times of the engine, and the size of the weights that it got, since the last record."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._last, self._stats = now(), EngineStats()

    def metrics(self, stats: EngineStats) -> dict[str, float]:
        """Return the metrics of a record, given the engine's totals."""
        before, elapsed = self._stats, self._now() - self._last
        self._stats, self._last = stats, self._now()
        out = {"time/capture_s": stats.capture_s - before.capture_s, "time/engine_s": stats.busy_s - before.busy_s}
        if stats.active_s:
            out["time/engine_idle_share"] = max(0.0, 1.0 - (stats.active_s - before.active_s) / elapsed)
        if published := stats.published_bytes - before.published_bytes:
            out["engine/published_mb"] = published / 1e6
        return out


TurnColumns = dict[str, list[list[float] | None]]


def trajectory_rows(
    number: int,
    groups: Sequence[Group],
    estimated: Estimate | None,
    decode: Callable[[Sequence[int]], str],
    statistics: TokenStatistics | None = None,
) -> list[dict[str, object]]:
    """Return a row per trajectory of a step, with columns of token values for those that were trained on."""
    columns = {} if estimated is None else _columns(estimated, statistics or TokenStatistics())
    return [
        trajectory_to_row(
            trajectory, step=number, group=group_number, decode=decode, columns=columns.get(id(trajectory), {})
        )
        for group_number, group in enumerate(groups)
        for trajectory in group.trajectories
    ]


def _columns(estimated: Estimate, statistics: TokenStatistics) -> dict[int, TurnColumns]:
    """Return the columns of each trajectory, by its id."""
    found: dict[int, TurnColumns] = {}
    for index, sample in enumerate(estimated.samples):
        trajectory = estimated.trajectories[sample.trajectory]
        columns = found.setdefault(id(trajectory), {name: [None] * len(trajectory.turns) for name in TOKEN_COLUMNS})
        known = {"advantages": estimated.advantages[index][sample.mask], "loss_mask": estimated.loss_masks[index].int()}
        for name, values in (known | statistics.of(sample)).items():
            for turn, part in _split_by_turn(sample, values):
                columns[name][turn] = part
    return found


def _split_by_turn(sample: Sample, values: Tensor) -> list[tuple[int, list[float]]]:
    """Split values of the sampled tokens [K] by turn."""
    turns, counts = sample.turn_ids[sample.mask].unique_consecutive(return_counts=True)
    parts = values.split(counts.tolist())
    return [(turn, part.tolist()) for turn, part in zip(turns.tolist(), parts, strict=True)]
