"""Needs of a run, before it starts: episodes, memory of a GPU, and time as comparable runs measured it.

Nothing is guessed: without a run of the same work in the folder of runs, the time is unknown until the first steps.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from turnwise.config.load import build, read_saved_settings
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.files.run_folders import CONFIG_FILE, METRICS_FILE
from turnwise.models.loading.load import resolve_device
from turnwise.record.jsonl_follower import JsonlFollower
from turnwise.record.rows import EvaluationRecord, read_records, select
from turnwise.record.steps import StepRecord, finite_number
from turnwise.report.formatting import format_duration, format_money
from turnwise.run.cluster_report import report_memory
from turnwise.run.configure import root_model
from turnwise.run.cost import HOUR_S, price_per_s
from turnwise.run.memory_report import HEADERS, plan_on_device
from turnwise.run.resources import device_memory

MAX_RUNS = 100
"""Newest runs that are compared."""
RECENT_STEPS = 20
"""Steps whose median time counts: the first ones compile and fill caches."""
SAME_WORK = (
    *("env", "agent", "context", "engine", "lora", "cluster", "system"),
    *("rollout.max_new_tokens", "rollout.max_tokens", "rollout.in_flight", "rollout.max_staleness"),
    *("algo.estimator", "train.epochs", "train.recompute", "model.device", "model.dtype", "data.sources"),
)
"""Sections and settings that the time of a step depends on, besides the model and the number of episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times of a run that did the same work."""

    run: str
    step_s: float
    """Median of its last steps."""
    episodes: int
    """Per step."""
    evaluation_s: float
    """Per evaluated episode; 0 if it evaluated none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    lines: Sequence[str]
    """Describe the run and how long it takes, in sentences."""
    memory_headers: Sequence[str] = ()
    memory_rows: Sequence[Sequence[str]] = ()
    """Memory of the GPU, or of each GPU of a cluster; empty on a CPU, whose memory is not planned."""
    seconds: float | None = None
    """Expected time; None if no comparable run was measured."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_run(config: Config) -> RunPlan:
    """Plan a run that `check_run` has accepted. Raises UserError if its model cannot fit the GPU."""
    headers, rows, lines = _plan_memory(config)
    measured = find_measurement(config)
    seconds = None if measured is None else _expect_seconds(config, measured)
    lines = [
        _describe_work(config),
        _describe_time(config, measured, seconds),
        *_describe_cost(config, seconds),
        *lines,
    ]
    return RunPlan(lines=lines, memory_headers=headers, memory_rows=rows, seconds=seconds)


def _episodes(config: Config) -> int:
    return config.rollout.groups * config.rollout.group_size


def _evaluations(config: Config) -> int:
    """Return the number of evaluations: before, after, and every `eval.every` steps between."""
    every, steps = config.eval.every, config.train.steps
    return 2 + (steps // every if every else 0)


def _describe_work(config: Config) -> str:
    steps, episodes = config.train.steps, _episodes(config)
    verb = "drawn from data.sources" if config.data.sources else "played"
    return (
        f"{steps:,} steps of {episodes:,} episodes: {steps * episodes:,} episodes {verb}, and {_evaluations(config)} "
        f"evaluations of {config.eval.episodes}."
    )


def _describe_time(config: Config, measured: Measured | None, seconds: float | None) -> str:
    if measured is None or seconds is None:
        limit = config.train.max_minutes
        stop = "" if limit is None else f" It stops after {limit:g} minutes."
        return f"Its time is unknown: no run in {config.record.folder} has done the same work.{stop}"
    scaled = measured.episodes != _episodes(config)
    note = f", which played {measured.episodes:,} episodes per step" if scaled else ""
    step_s = measured.step_s * _episodes(config) / measured.episodes
    return f"About {format_duration(seconds)}: {step_s:.2g} s per step, as measured in {measured.run}{note}."


def _describe_cost(config: Config, seconds: float | None) -> list[str]:
    price, limit = price_per_s(config), config.train.max_minutes
    if price is None:
        return []
    hour = f"{format_money(price * HOUR_S)} per hour"
    if seconds is not None:
        return [f"About {format_money(price * seconds)}, at {hour}."]
    return [f"{hour}{'' if limit is None else f': at most {format_money(price * 60 * limit)} for its training'}."]


def _expect_seconds(config: Config, measured: Measured) -> float:
    steps = config.train.steps * measured.step_s * _episodes(config) / measured.episodes
    limit = config.train.max_minutes
    training = steps if limit is None else min(steps, 60 * limit)
    return training + _evaluations(config) * config.eval.episodes * measured.evaluation_s


def find_measurement(config: Config) -> Measured | None:
    """Return the times of the newest run in the folder that did the same work with any number of episodes."""
    folder, wanted = Path(config.record.folder), _work(config)
    runs = sorted(folder.glob(f"*/{CONFIG_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in runs[:MAX_RUNS]:
        try:
            known = build(read_saved_settings(path))
        except UserError:  # of a damaged file, or another version of turnwise
            continue
        if _work(known) == wanted and (measured := _measure(path.parent, _episodes(known))) is not None:
            return measured
    return None


def _work(config: Config) -> Mapping[str, Any]:
    settings = config.model_dump()
    chosen = {name: _look_up(settings, name) for name in SAME_WORK}
    return {**chosen, "system": {**chosen["system"], "threads": 0}, "model.name": root_model(config.model.name)}


def _look_up(settings: Mapping[str, Any], name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = value[part]
    return value


def _measure(run: Path, episodes: int) -> Measured | None:
    records = read_records(JsonlFollower(run / METRICS_FILE).iter_rows())
    steps, evaluations = select(records, StepRecord), select(records, EvaluationRecord)
    times = [seconds for record in steps if (seconds := finite_number(record.time.get("total_s")))]
    if not times:
        return None
    spent = sum(finite_number(record.time.get("total_s")) or 0.0 for record in evaluations)
    played = sum(finite_number(record.metrics.get("episodes")) or 0.0 for record in evaluations)
    return Measured(
        run=str(run),
        step_s=statistics.median(times[-RECENT_STEPS:]),
        episodes=episodes,
        evaluation_s=spent / played if played else 0.0,
    )


def _plan_memory(config: Config) -> tuple[Sequence[str], Sequence[Sequence[str]], list[str]]:
    if config.cluster.engines and config.cluster.learners:
        table = report_memory(config)
        return table.headers, table.rows, []
    device = resolve_device(config.model.device)
    if device.type != "cuda":
        return (), (), []
    index = torch.cuda.current_device() if device.index is None else device.index
    report = plan_on_device(config, root_model(config.model.name), device_memory(torch.device("cuda", index)))
    return HEADERS, report.rows, list(report.lines)
