"""Record a training step: its row of metrics, its timings, its trajectories, and the progress display."""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from turnwise.concurrency.spans import SpanLog
from turnwise.core.protocols import EngineControl, EngineStats
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Group, TokenName
from turnwise.record.rows import select
from turnwise.record.run_folder import RunFolder
from turnwise.record.steps import StepRecord
from turnwise.record.trajectories import TOKEN_COLUMNS, trajectory_to_row
from turnwise.report.progress import Progress
from turnwise.report.trajectory_images import TrajectoryImages
from turnwise.training.step import Estimate, Metrics, Part, TokenStatistics, TrainedStep

LENGTH_STOP_WARNING = 0.2
"""Share of turns cut at rollout.max_new_tokens from which the first step warns."""


class StepTimer:
    """Seconds of each phase of a step."""

    def __init__(
        self, now: Callable[[], float] = time.perf_counter, on_lap: Callable[[str, float], None] | None = None
    ) -> None:
        """`on_lap`: called with each phase that has ended, and its seconds."""
        self._now, self._on_lap = now, on_lap
        self._began = self._last = now()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._now()
        self._laps[name] = seconds = now - self._last
        self._last = now
        if self._on_lap is not None:
            self._on_lap(name, seconds)

    def add(self, name: str, seconds: float) -> None:
        """Count a phase that was over before this timer was created."""
        self._laps[name] = seconds
        self._began -= seconds

    def seconds(self) -> dict[str, float]:
        """Return the seconds so far as they are recorded: `rollout_s`, ..., `total_s`."""
        return {f"{name}_s": seconds for name, seconds in self._laps.items()} | {"total_s": self._now() - self._began}

    def metrics(self, tokens: float) -> dict[str, float]:
        """Return the metrics of a step of so many tokens."""
        seconds = self.seconds()
        timings = seconds | {"tokens_per_s": tokens / seconds["total_s"]}
        return {f"time/{name}": value for name, value in timings.items()}


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


class RunFiles(Part):
    """Writes the row of a step to `metrics.jsonl`, and why the run diverged to `alarms.jsonl`."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def after(self, record: StepRecord) -> None:
        self._folder.append_metrics(record)

    def diverged(self, number: int, error: Exception) -> None:
        self._folder.append_alarm(number, str(error))


class WorkerSpans(Part):
    """Writes who did what in each step to `spans.jsonl`."""

    def __init__(self, folder: RunFolder, spans: SpanLog) -> None:
        self._folder, self._spans = folder, spans

    def after(self, record: StepRecord) -> None:
        self._folder.append_spans(record.step, self._spans.take())


class ProgressDisplay(Part):
    """Shows the steps on the terminal."""

    def __init__(self, progress: Progress, folder: RunFolder, *, total: int | None = None) -> None:
        """`total`: number of steps, if the progress display does not know it yet."""
        self._progress, self._folder, self._total = progress, folder, total

    async def begin(self, step: int) -> None:
        self._progress.begin(step, self._total, select(self._folder.read_records(), StepRecord))

    async def sampled(self) -> None:
        self._progress.phase("update", 0, 1)

    def after(self, record: StepRecord) -> None:
        length_stops = record.rollout.get("length_stops", 0.0)
        if record.step == 1 and length_stops > LENGTH_STOP_WARNING:
            share = f"{100 * length_stops:.0f} %"
            self._progress.note(f"{share} of turns were cut at rollout.max_new_tokens: raise it to let them finish")
        self._progress.step(record)


class EngineTimes(Part):
    def __init__(self, engine: EngineControl) -> None:
        self._engine, self._timer = engine, EngineTimer()

    def record(self, trained: TrainedStep) -> Metrics:
        return self._timer.metrics(self._engine.stats())


class TrajectoryFiles(Part):
    """Writes the trajectories of every n-th step, with values of their tokens, and pictures of some."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        every: int,
        decode: Callable[[Sequence[int]], str],
        name_token: Callable[[int], TokenName],
        pictures: TrajectoryImages,
    ) -> None:
        """`every` 0 writes none."""
        self._folder, self._every, self._pictures = folder, every, pictures
        self._decode, self._name_token = decode, name_token

    def reads_tokens(self, number: int) -> bool:
        return self._every > 0 and number % self._every == 0

    def record(self, trained: TrainedStep) -> Metrics:
        if trained.tokens is not None:
            has_columns = trained.estimate is not None and not trained.estimate.of_utterances
            estimate = trained.estimate if has_columns else None
            groups = [*trained.rollout.groups, *trained.rollout.retried]
            rows = trajectory_rows(trained.number, groups, estimate, self._decode, trained.tokens)
            self._folder.write_trajectories(trained.number, rows, self._name_token)
            self._pictures.write(trained.number, rows)
        return {}


TurnColumns = dict[str, list[list[float] | None]]


def trajectory_rows(
    number: int,
    groups: Sequence[Group],
    estimate: Estimate | None,
    decode: Callable[[Sequence[int]], str],
    tokens: TokenStatistics | None = None,
) -> list[dict[str, object]]:
    """Return a row per trajectory of a step, with columns of token values for those that were trained on."""
    columns_of: dict[int, TurnColumns] = {}
    if estimate is not None:
        trained = _columns(estimate, tokens or TokenStatistics())
        columns_of = {id(member): columns for member, columns in zip(estimate.trajectories, trained, strict=True)}
    rows = []
    for group_number, group in enumerate(groups):
        for trajectory in group.trajectories:
            columns = columns_of.get(id(trajectory), {})
            rows.append(trajectory_to_row(trajectory, step=number, group=group_number, decode=decode, columns=columns))
    return rows


def _columns(estimated: Estimate, statistics: TokenStatistics) -> list[TurnColumns]:
    """Return the columns of each trajectory of the estimate."""
    of_trajectories: list[TurnColumns] = [
        {name: [None] * len(trajectory.turns) for name in TOKEN_COLUMNS} for trajectory in estimated.trajectories
    ]
    for index, sample in enumerate(estimated.samples):
        columns = of_trajectories[sample.trajectory]
        known = {"advantages": estimated.advantages[index][sample.mask], "loss_mask": estimated.loss_masks[index].int()}
        for name, values in (known | statistics.of(index)).items():
            for turn, part in _split_by_turn(sample, values):
                columns[name][turn] = part
    return of_trajectories


def _split_by_turn(sample: Sample, values: Tensor) -> list[tuple[int, list[float]]]:
    """Split values of the sampled tokens [K] by turn."""
    turns, counts = sample.turn_ids[sample.mask].unique_consecutive(return_counts=True)
    parts = values.split(counts.tolist())
    return [(turn, part.tolist()) for turn, part in zip(turns.tolist(), parts, strict=True)]
