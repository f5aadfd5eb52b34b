"""The report of a run: how it ended, how it went there, and some of its episodes."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.config.schema import Config
from turnwise.record.jsonl_follower import JsonlFollower
from turnwise.record.metrics import finite_number
from turnwise.report.episodes import choose_from_index, episode_heading, episode_html, read_trajectory_at
from turnwise.report.formatting import format_count, format_decimal, format_duration, format_percent
from turnwise.report.learning_curve import draw_learning_curve
from turnwise.report.metric_charts import draw_metric_chart, metric_points, recorded_metrics
from turnwise.report.page import cards, escaped, figure, folded, page, section, settings_table, table

MAX_ALARMS = 50
MAX_VALUE = 300


def run_report(path: Path, summary: Mapping[str, Any] | None = None) -> str:
    """Of a run that has ended, or of one that goes on. `summary`: where it is not in the folder yet."""
    rows = _readable(JsonlFollower(path / "metrics.jsonl").read_all())
    settings = read_flat_settings(path / "config.toml")
    alarms = JsonlFollower(path / "alarms.jsonl").read_all()
    summary = summary or read_json_object(path / "summary.json")
    subtitle = ", ".join(
        f"{settings[key]}" for key in ("env.kind", "model.name", "algo.advantage") if settings.get(key)
    )
    return page(
        path.resolve().name,
        subtitle,
        [
            cards(_numbers(rows, summary, settings)),
            _curves(rows, alarms),
            _alarms(alarms),
            _evaluations(rows),
            *_episodes(path),
            _settings(settings),
        ],
    )


def read_json_object(path: Path) -> dict[str, Any] | None:
    """A JSON file that may be missing or broken."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_flat_settings(path: Path) -> dict[str, str]:
    """A TOML file's values by their dotted keys."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {key: str(value)[:MAX_VALUE] for key, value in _flat(found, "")}


def _flat(table: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _readable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that say their step, as every row does that this program wrote."""
    return [row for row in rows if isinstance(row.get("step"), int) and abs(row["step"]) < 10**12]


def _numbers(
    rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None, settings: Mapping[str, str]
) -> list[tuple[str, str]]:
    steps = [row for row in rows if finite_number(row.get("train/grad_norm", row.get("rollout/episodes"))) is not None]
    done = max((row["step"] for row in steps), default=0)
    found = [("state", "finished" if summary is not None else "not finished")]
    evaluated = [row for row in rows if finite_number(row.get("eval/success")) is not None]
    if evaluated:
        found.append(("success before", format_percent(finite_number(evaluated[0]["eval/success"]))))
    if len(evaluated) > 1:
        last = evaluated[-1]
        ends = [format_percent(finite_number(last.get(key))) for key in ("eval/success_low", "eval/success_high")]
        found.append(
            (
                "success after" if summary is not None else "success now",
                format_percent(finite_number(last["eval/success"])),
            )
        )
        found.append(("95 % interval", f"{ends[0].removesuffix(' %')} to {ends[1]}"))
    found.append(("steps", f"{done} of {settings.get('train.steps', '?')}" if summary is None else str(done)))
    found.append(("training time", format_duration(_total(rows, "time/total_s", but="eval/name"))))
    if episodes := _total(rows, "rollout/episodes"):
        found.append(("episodes", format_count(episodes)))
    if tokens := _total(rows, "rollout/sampled_tokens"):
        found.append(("sampled tokens", format_count(tokens)))
    return found


def _total(rows: Sequence[Mapping[str, Any]], key: str, but: str = "") -> float:
    return sum(finite_number(row.get(key)) or 0.0 for row in rows if but not in row)


def _curves(rows: Sequence[dict[str, Any]], alarms: Sequence[Mapping[str, Any]]) -> str:
    marks = [step for alarm in alarms if (step := finite_number(alarm.get("step"))) is not None]
    drawn = [
        figure(draw_metric_chart(points, metric.label, metric.format, is_fraction=metric.is_fraction, marks=marks))
        for metric, points in recorded_metrics(rows)
        if metric.key != "rollout/success"
    ]
    if metric_points(rows, "rollout/success") or metric_points(rows, "eval/success"):
        curve = figure(draw_learning_curve([_finite(row) for row in rows], "Success over training"), wide=True)
    elif not drawn:
        return section("Curves", '<p class="soft">no steps yet</p>')
    else:
        curve = ""
    return section("Curves", curve, f'<div class="panels">{"".join(drawn)}</div>')


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the learning curve reads, with only numbers in it."""
    keys = ("rollout/success", "eval/success", "eval/success_low", "eval/success_high", "time/total_s")
    return {"step": row["step"], **{key: finite_number(row.get(key)) for key in keys}}


def _alarms(alarms: Sequence[Mapping[str, Any]]) -> str:
    if not alarms:
        return ""
    listed = "".join(
        f"<li>step {escaped(str(alarm.get('step')), 20)}: {escaped(str(alarm.get('text', '')), 500)}</li>"
        for alarm in alarms[-MAX_ALARMS:]
    )
    return section("Alarms", f'<ul class="alarms">{listed}</ul>')


def _evaluations(rows: Sequence[Mapping[str, Any]]) -> str:
    found = [row for row in rows if finite_number(row.get("eval/success")) is not None]
    if not found:
        return ""
    lines = [
        (
            str(row.get("eval/name", ""))[:60],
            str(row["step"]),
            *(
                format_percent(finite_number(row.get(f"eval/{key}")))
                for key in ("success", "success_low", "success_high")
            ),
            format_decimal(finite_number(row.get("eval/reward"))),
            format_count(finite_number(row.get("eval/episodes"))),
        )
        for row in found
    ]
    headers = ("evaluation", "step", "success", "from", "to", "return", "episodes")
    body = table(headers, lines)
    return section("Evaluations", body if len(lines) <= 12 else folded(f"all {len(lines)}", body))


def _episodes(path: Path) -> Iterator[str]:
    chosen = choose_from_index(JsonlFollower(path / "trajectories" / "index.jsonl").iter_rows())
    for title, entries in zip(("Some that succeeded", "Some that did not"), chosen, strict=True):
        shown = []
        for entry in entries:
            file = path / "trajectories" / f"step_{entry['step']:06d}.jsonl"
            if (row := read_trajectory_at(file, entry.get("offset"), entry.get("length"))) is not None:
                shown.append(episode_html(row, f"step {entry['step']}: {episode_heading(row)}"))
        if shown:
            yield section(title, *shown)


def _settings(settings: Mapping[str, str]) -> str:
    """Those that are not the defaults, then all of them."""
    defaults = {key: str(value)[:MAX_VALUE] for key, value in _flat(json.loads(Config().model_dump_json()), "")}
    alike = {"None": "none"}
    changed = [
        (key, value)
        for key, value in settings.items()
        if alike.get(value, value) != alike.get(defaults.get(key, ""), defaults.get(key, ""))
    ]
    return section(
        "Settings",
        settings_table(changed) if changed else '<p class="soft">all are the defaults</p>',
        folded(f"all {len(settings)} settings", settings_table(settings.items())),
    )
