"""The report of an evaluation: every model's success, how they compare, and some of their episodes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.record.evaluation_folder import read_plan
from turnwise.record.metrics import finite_number
from turnwise.report.episodes import choose_from_file, episode_heading, episode_html
from turnwise.report.formatting import (
    format_count,
    format_decimal,
    format_length,
    format_p_value,
    format_percent,
    format_points,
)
from turnwise.report.page import cards, figure, folded, page, section, settings_table, table
from turnwise.report.run_report import read_flat_settings, read_json_object
from turnwise.report.success_chart import SuccessBar, draw_success_chart

MAX_MODELS = 20


def evaluation_report(path: Path) -> str:
    plan = read_plan(path)
    summary = read_json_object(path / "summary.json")
    models = [model for model in _maps(plan.get("models")) if _is_file_name(model.get("name"))][:MAX_MODELS]
    on = f"{plan.get('environment')}, {plan.get('split')} split, tasks {str(plan.get('seeds'))[:80]}"
    results = _maps(summary.get("models")) if summary is not None else []
    return page(
        path.resolve().name,
        on,
        [
            cards(_numbers(plan, summary, models)),
            _results(results, str(plan.get("environment")), int(finite_number(plan.get("tries")) or 1)),
            _comparisons(_maps(summary.get("comparisons")) if summary is not None else []),
            *(_model(path, model) for model in models),
        ],
    )


def _numbers(
    plan: Mapping[str, Any], summary: Mapping[str, Any] | None, models: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    found = [("state", "finished" if summary is not None and summary.get("finished") else "not finished")]
    if summary is not None:
        found.append(("tasks", format_count(finite_number(summary.get("tasks")))))
    return [*found, ("tries of each", str(plan.get("tries", 1))[:20]), ("models", str(len(models)))]


def _results(results: Sequence[Mapping[str, Any]], environment: str, tries: int) -> str:
    sound = [each for each in results if None not in [finite_number(each.get(key)) for key in _ENDS]]
    if not sound:
        return ""
    best = f"pass_at_{tries}"
    bars = [
        SuccessBar(
            label=str(each.get("label")),
            success=float(each["success"]),
            low=float(each["success_low"]),
            high=float(each["success_high"]),
            pass_at_k=finite_number(each.get(best)) if tries > 1 else None,
        )
        for each in sound
    ]
    headers = ("model", "success", "from", "to", "return", "turns", "invalid", "tokens", "episodes", "broken")
    return section(
        "Success",
        figure(draw_success_chart(bars, environment[:60], tries), wide=True),
        table(headers, [_row(each) for each in sound]),
    )


_ENDS = ("success", "success_low", "success_high")


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(each.get("label"))[:120],
        *(format_percent(finite_number(each.get(key))) for key in _ENDS),
        format_decimal(finite_number(each.get("reward"))),
        format_length(finite_number(each.get("turns"))),
        format_percent(finite_number(each.get("invalid"))),
        format_length(finite_number(each.get("sampled_tokens"))),
        format_count(finite_number(each.get("episodes"))),
        format_count(finite_number(each.get("errors"))),
    )


def _comparisons(pairs: Sequence[Mapping[str, Any]]) -> str:
    if not pairs:
        return ""
    rows = []
    for pair in pairs:
        change, low, high, p = (_number(pair.get(key)) for key in ("success", "low", "high", "p"))
        names = f"{pair.get('second')} against {pair.get('first')}"[:200]
        rows.append(
            (
                names,
                format_points(change),
                format_points(low),
                format_points(high),
                format_p_value(p),
                str(pair.get("test", ""))[:60],
            )
        )
    return section("Compared task by task", table(("", "points of success", "from", "to", "p", "test"), rows))


def _number(value: Any) -> float:
    found = finite_number(value)
    return math.nan if found is None else found


def _model(path: Path, model: Mapping[str, Any]) -> str:
    good, bad, succeeded, played = choose_from_file(path / "trajectories" / f"{model['name']}.jsonl")
    shown = [episode_html(row, episode_heading(row)) for row in [*good, *bad]]
    label = str(model.get("label", model["name"]))[:120]
    settings = read_flat_settings(path / "models" / f"{model['name']}.toml")
    return section(
        f"{label}: {succeeded} of {played} episodes succeeded",
        *shown,
        folded(f"all {len(settings)} settings", settings_table(settings.items())) if settings else "",
    )


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _is_file_name(name: Any) -> bool:
    """A plan may come from anywhere: its names lead to files of this folder, or nowhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")
