"""The values that the HTML report of a training run shows (template `run.html`)."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnwise.config.keys import all_keys
from turnwise.config.schema import Config
from turnwise.envs.settings import NO_ENV
from turnwise.files.run_folders import METRICS_FILE
from turnwise.record.images import IMAGES_FOLDER
from turnwise.record.jsonl_follower import JsonlFollower
from turnwise.record.rows import (
    EvaluationRecord,
    HeldOutRecord,
    Record,
    evaluations_with_success,
    read_records,
    select,
    training_s,
)
from turnwise.record.steps import SUCCESS, StepRecord, finite_number
from turnwise.report.before_after import choose_pair, view_pair
from turnwise.report.episodes import EpisodeView, choose_from_index, episode_heading, read_trajectory_at, view_episode
from turnwise.report.explain import explain
from turnwise.report.formatting import (
    format_count,
    format_decimal,
    format_duration,
    format_energy,
    format_interval,
    format_money,
    format_percent,
    shorten,
)
from turnwise.report.learning_curve import draw_learning_curve
from turnwise.report.metric_charts import draw_metric_chart, metric_points, recorded_metrics
from turnwise.report.run_facts import files_of, read_facts
from turnwise.report.sentences import by_title
from turnwise.text.json_objects import parse_object

MAX_ALARMS = 50
MAX_VALUE = 300
"""Characters of a setting's value."""
MAX_DEPTH = 32
"""Levels of tables that are shown: settings of turnwise have four, and a file may have thousands."""
COUNTS = {"episodes": "episodes", "dropped": "dropped episodes", "sampled_tokens": "sampled tokens"}
"""Metrics of played episodes that are summed over the steps, and their labels."""

Row = Mapping[str, Any]


def run_context(path: Path, summary: Row | None = None) -> dict[str, Any]:
    """Return the template variables of a run's report. `summary` replaces a `summary.json` that is not written yet."""
    records = read_records(JsonlFollower(path / METRICS_FILE).iter_rows())
    steps = select(records, StepRecord)
    settings = read_flat_settings(path / "config.toml")
    alarms = JsonlFollower(path / "alarms.jsonl").read_all()
    summary = summary or read_json_object(path / "summary.json")
    best, worst = choose_from_index(JsonlFollower(path / "trajectories" / "index.jsonl").iter_rows())
    finished = summary is not None and summary.get("finished") is not False
    titles = (settings.get(key) for key in ("env.kind", "model.name", "algo.advantage", "algo.advantage.kind"))
    return {
        "title": path.resolve().name,
        "subtitle": ", ".join(title for title in titles if title and title != NO_ENV),
        "numbers": _headline_numbers(records, summary, settings),
        "explanation": by_title(explain(read_facts(files_of(path), finished=finished))),
        "learning_curve": _learning_curve(records),
        "metric_charts": _metric_charts(steps, alarms),
        "alarms": [
            (shorten(str(alarm.get("step")), 20), shorten(str(alarm.get("text", "")), 500))
            for alarm in alarms[-MAX_ALARMS:]
        ],
        "evaluations": [_evaluation_cells(record) for record in evaluations_with_success(records)],
        "pair": view_pair(
            choose_pair(JsonlFollower(path / "trajectories" / "index.jsonl").iter_rows()), partial(_view_entry, path)
        ),
        "succeeded": _view_episodes(path, best),
        "failed": _view_episodes(path, worst),
        "changed_settings": _changed(settings),
        "settings": list(settings.items()),
    }


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if the file is missing or broken."""
    try:
        return parse_object(path.read_bytes())
    except OSError:
        return None


def read_flat_settings(path: Path) -> dict[str, str]:
    """Return a TOML file's values by their dotted keys; nothing if the file is missing or broken."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return _flatten(table)


def _flatten(table: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value)[:MAX_VALUE] for key, value in _items(table, "")}


def _items(table: Mapping[str, Any], prefix: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if not isinstance(value, Mapping) or not value:
            yield f"{prefix}{name}", value
        elif depth < MAX_DEPTH:
            yield from _items(value, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", "..."


def _headline_numbers(
    records: Sequence[Record], summary: Row | None, settings: Mapping[str, str]
) -> list[tuple[str, str]]:
    ended = summary is not None
    finished = summary is not None and summary.get("finished") is not False
    steps = select(records, StepRecord)
    done = max((record.step for record in steps), default=0)
    numbers = [("state", "finished" if finished else "stopped by its time limit" if ended else "not finished")]
    evaluated = evaluations_with_success(records)
    if evaluated:
        numbers.append(("success before", format_percent(evaluated[0].success)))
    if len(evaluated) > 1:
        numbers.append(("success after" if ended else "success now", format_percent(evaluated[-1].success)))
        numbers.append(("95 % interval", format_interval(evaluated[-1].interval)))
    numbers += [
        (f"held-out loss {name}", format_decimal(loss))
        for record in select(records, HeldOutRecord)
        for name, loss in record.losses.items()
        if finite_number(loss) is not None
    ]
    numbers.append(("steps", str(done) if finished else f"{done} of {settings.get('train.steps', '?')}"))
    numbers.append(("training time", format_duration(sum(map(training_s, records)))))
    if summary is not None and (cost := finite_number(summary.get("cost"))) is not None:
        numbers.append(("cost", format_money(cost)))
    if summary is not None and (energy := finite_number(summary.get("energy_wh"))) is not None:
        numbers.append(("energy", format_energy(energy)))
    for name, label in COUNTS.items():
        if count := _total(record.played(name) for record in steps):
            numbers.append((label, format_count(count)))
    return numbers


def _total(values: Iterable[float | None]) -> float:
    return sum(finite_number(value) or 0.0 for value in values)


def _learning_curve(records: Sequence[Record]) -> Markup | None:
    if not (metric_points(select(records, StepRecord), SUCCESS) or evaluations_with_success(records)):
        return None
    return Markup(draw_learning_curve(records, "Success over training"))


def _metric_charts(steps: Sequence[StepRecord], alarms: Sequence[Row]) -> list[Markup]:
    marks = [step for alarm in alarms if (step := finite_number(alarm.get("step"))) is not None]
    return [
        Markup(draw_metric_chart(points, metric, marks))
        for metric, points in recorded_metrics(steps, "report")
        if metric.name != SUCCESS
    ]


def _evaluation_cells(record: EvaluationRecord) -> tuple[str, ...]:
    return (
        record.name[:60],
        str(record.step),
        *map(format_percent, (record.success, *record.interval)),
        format_decimal(finite_number(record.metrics.get("reward"))),
        format_count(finite_number(record.metrics.get("episodes"))),
    )


def _view_episodes(path: Path, entries: Sequence[Row]) -> list[EpisodeView]:
    views = []
    for entry in entries:
        if (view := _view_entry(path, entry, f"step {entry['step']}")) is not None:
            views.append(view)
    return views


def _view_entry(path: Path, entry: Row, heading: str) -> EpisodeView | None:
    """Return what the report shows of an episode; None if it cannot be read."""
    evaluation = entry.get("evaluation")
    name = "step" if evaluation is None else f"eval_{evaluation}"
    file = path / "trajectories" / f"{name}_{entry['step']:06d}.jsonl"
    row = read_trajectory_at(file, entry.get("offset"), entry.get("length"))
    return None if row is None else view_episode(row, f"{heading}: {episode_heading(row)}", path / IMAGES_FOLDER)


def _changed(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the settings that differ from their defaults. TOML has no null: unset values are written "none"."""
    defaults = {key.name: key.default for key in all_keys().values()} | _flatten(_default_config())
    defaults = {key: "none" if value in (None, "None") else str(value) for key, value in defaults.items()}
    return [
        (key, value)
        for key, value in settings.items()
        if ("none" if value == "None" else value) != defaults.get(key, "")
    ]


def _default_config() -> dict[str, Any]:
    return json.loads(Config().model_dump_json())
