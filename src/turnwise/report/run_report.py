"""The values that the HTML report of a training run shows (template `run.html`)."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnwise.config.keys import all_keys
from turnwise.config.schema import NO_ENV, Config
from turnwise.record.images import IMAGES_FOLDER
from turnwise.record.jsonl_follower import JsonlFollower
from turnwise.record.numbers import finite_number
from turnwise.record.steps import read_steps
from turnwise.report.episodes import EpisodeView, choose_from_index, episode_heading, read_trajectory_at, view_episode
from turnwise.report.formatting import (
    format_count,
    format_decimal,
    format_duration,
    format_interval,
    format_percent,
    shorten,
)
from turnwise.report.learning_curve import draw_learning_curve
from turnwise.report.metric_charts import draw_metric_chart, metric_points, recorded_metrics

MAX_ALARMS = 50
MAX_VALUE = 300
MAX_DEPTH = 32
"""Levels of tables that are shown: settings of turnwise have four, and a file may have thousands."""
"""Characters of a setting's value."""

COUNTS = {"episodes": "episodes", "dropped": "dropped episodes", "sampled_tokens": "sampled tokens"}
"""Metrics of played episodes that are summed over the steps, and their labels."""

Row = Mapping[str, Any]


def run_context(path: Path, summary: Row | None = None) -> dict[str, Any]:
    """Return the template variables of a run's report. `summary` replaces a `summary.json` that is not written yet."""
    rows = _rows_with_step(JsonlFollower(path / "metrics.jsonl").read_all())
    settings = read_flat_settings(path / "config.toml")
    alarms = JsonlFollower(path / "alarms.jsonl").read_all()
    summary = summary or read_json_object(path / "summary.json")
    best, worst = choose_from_index(JsonlFollower(path / "trajectories" / "index.jsonl").iter_rows())
    titles = (settings.get(key) for key in ("env.kind", "model.name", "algo.advantage", "algo.advantage.kind"))
    return {
        "title": path.resolve().name,
        "subtitle": ", ".join(title for title in titles if title and title != NO_ENV),
        "numbers": _headline_numbers(rows, summary, settings),
        "learning_curve": _learning_curve(rows),
        "metric_charts": _metric_charts(rows, alarms),
        "alarms": [
            (shorten(str(alarm.get("step")), 20), shorten(str(alarm.get("text", "")), 500))
            for alarm in alarms[-MAX_ALARMS:]
        ],
        "evaluations": [_evaluation_cells(row) for row in _evaluated(rows)],
        "succeeded": _view_episodes(path, best),
        "failed": _view_episodes(path, worst),
        "changed_settings": _changed(settings),
        "settings": list(settings.items()),
    }


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if the file is missing or broken."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


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


def _rows_with_step(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop rows without a valid step, which only a damaged or foreign file has."""
    return [row for row in rows if isinstance(row.get("step"), int) and abs(row["step"]) < 10**12]


def _evaluated(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if finite_number(row.get("eval/success")) is not None]


def _headline_numbers(rows: Sequence[Row], summary: Row | None, settings: Mapping[str, str]) -> list[tuple[str, str]]:
    ended = summary is not None
    finished = summary is not None and summary.get("finished") is not False
    steps = read_steps(rows)
    done = max((record.step for record in steps), default=0)
    numbers = [("state", "finished" if finished else "stopped by its time limit" if ended else "not finished")]
    evaluated = _evaluated(rows)
    if evaluated:
        numbers.append(("success before", format_percent(finite_number(evaluated[0]["eval/success"]))))
    if len(evaluated) > 1:
        last = evaluated[-1]
        ends = [finite_number(last.get(key)) for key in ("eval/success_low", "eval/success_high")]
        success = format_percent(finite_number(last["eval/success"]))
        numbers.append(("success after" if ended else "success now", success))
        numbers.append(("95 % interval", format_interval(ends)))
    numbers += [
        (f"held-out loss {name}", format_decimal(float(row[f"held_out/{name}"])))
        for name in ("before", "after")
        for row in rows
        if finite_number(row.get(f"held_out/{name}")) is not None
    ]
    numbers.append(("steps", str(done) if finished else f"{done} of {settings.get('train.steps', '?')}"))
    numbers.append(("training time", format_duration(_total(record.time.get("total_s") for record in steps))))
    for label, name in (
        ("episodes", "episodes"),
        ("dropped episodes", "dropped"),
        ("sampled tokens", "sampled_tokens"),
    ):
        if count := _total(record.played(name) for record in steps):
            numbers.append((label, format_count(count)))
    return numbers


def _total(values: Iterable[float | None]) -> float:
    return sum(finite_number(value) or 0.0 for value in values)


def _learning_curve(rows: Sequence[Row]) -> Markup | None:
    if not (metric_points(rows, "rollout/success") or metric_points(rows, "eval/success")):
        return None
    keys = ("rollout/success", "eval/success", "eval/success_low", "eval/success_high")
    finite = [{"step": row["step"], **{key: finite_number(row.get(key)) for key in keys}} for row in rows]
    return Markup(draw_learning_curve(finite, "Success over training"))


def _metric_charts(rows: Sequence[Row], alarms: Sequence[Row]) -> list[Markup]:
    marks = [step for alarm in alarms if (step := finite_number(alarm.get("step"))) is not None]
    return [
        Markup(draw_metric_chart(points, metric, marks))
        for metric, points in recorded_metrics(rows, "report")
        if metric.name != "rollout/success"
    ]


def _evaluation_cells(row: Row) -> tuple[str, ...]:
    rates = (finite_number(row.get(f"eval/{key}")) for key in ("success", "success_low", "success_high"))
    return (
        str(row.get("eval/name", ""))[:60],
        str(row["step"]),
        *map(format_percent, rates),
        format_decimal(finite_number(row.get("eval/reward"))),
        format_count(finite_number(row.get("eval/episodes"))),
    )


def _view_episodes(path: Path, entries: Sequence[Row]) -> list[EpisodeView]:
    views = []
    for entry in entries:
        file = path / "trajectories" / f"step_{entry['step']:06d}.jsonl"
        if (row := read_trajectory_at(file, entry.get("offset"), entry.get("length"))) is not None:
            views.append(view_episode(row, f"step {entry['step']}: {episode_heading(row)}", path / IMAGES_FOLDER))
    return views


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
