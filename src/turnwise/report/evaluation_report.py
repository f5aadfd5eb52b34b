"""The report of an evaluation: every model's success, how they compare, and some of their episodes."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.record.evaluation_folder import read_plan
from turnwise.record.metrics import number_of
from turnwise.report.episodes import chosen_of_file, episode_html, heading_of
from turnwise.report.formatting import count, decimal, length, percent, points, probability
from turnwise.report.page import cards, figure, folded, page, section, settings_table, table
from turnwise.report.run_report import flat_settings, read_object
from turnwise.report.success_chart import Bar, success_svg

MAX_MODELS = 20


def evaluation_report(path: Path) -> str:
    plan = read_plan(path)
    summary = read_object(path / "summary.json")
    models = [model for model in _maps(plan.get("models")) if _is_file_name(model.get("name"))][:MAX_MODELS]
    on = f"{plan.get('environment')}, {plan.get('split')} split, tasks {str(plan.get('seeds'))[:80]}"
    results = _maps(summary.get("models")) if summary is not None else []
    return page(
        path.resolve().name,
        on,
        [
            cards(_numbers(plan, summary, models)),
            _results(results, str(plan.get("environment")), int(number_of(plan.get("tries")) or 1)),
            _comparisons(_maps(summary.get("comparisons")) if summary is not None else []),
            *(_model(path, model) for model in models),
        ],
    )


def _numbers(
    plan: Mapping[str, Any], summary: Mapping[str, Any] | None, models: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    found = [("state", "finished" if summary is not None and summary.get("finished") else "not finished")]
    if summary is not None:
        found.append(("tasks", count(number_of(summary.get("tasks")))))
    return [*found, ("tries of each", str(plan.get("tries", 1))[:20]), ("models", str(len(models)))]


def _results(results: Sequence[Mapping[str, Any]], environment: str, tries: int) -> str:
    sound = [each for each in results if None not in [number_of(each.get(key)) for key in _ENDS]]
    if not sound:
        return ""
    best = f"pass_at_{tries}"
    bars = [
        Bar(
            label=str(each.get("label")),
            success=float(each["success"]),
            low=float(each["success_low"]),
            high=float(each["success_high"]),
            best_of=number_of(each.get(best)) if tries > 1 else None,
        )
        for each in sound
    ]
    headers = ("model", "success", "from", "to", "return", "turns", "invalid", "tokens", "episodes", "broken")
    return section(
        "Success",
        figure(success_svg(bars, environment[:60], tries), wide=True),
        table(headers, [_row(each) for each in sound]),
    )


_ENDS = ("success", "success_low", "success_high")


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(each.get("label"))[:120],
        *(percent(number_of(each.get(key))) for key in _ENDS),
        decimal(number_of(each.get("reward"))),
        length(number_of(each.get("turns"))),
        percent(number_of(each.get("invalid"))),
        length(number_of(each.get("sampled_tokens"))),
        count(number_of(each.get("episodes"))),
        count(number_of(each.get("errors"))),
    )


def _comparisons(pairs: Sequence[Mapping[str, Any]]) -> str:
    if not pairs:
        return ""
    rows = []
    for pair in pairs:
        change, low, high, p = (_number(pair.get(key)) for key in ("success", "low", "high", "p"))
        names = f"{pair.get('second')} against {pair.get('first')}"[:200]
        rows.append((names, points(change), points(low), points(high), probability(p), str(pair.get("test", ""))[:60]))
    return section("Compared task by task", table(("", "points of success", "from", "to", "p", "test"), rows))


def _number(value: Any) -> float:
    found = number_of(value)
    return math.nan if found is None else found


def _model(path: Path, model: Mapping[str, Any]) -> str:
    good, bad, succeeded, played = chosen_of_file(path / "trajectories" / f"{model['name']}.jsonl")
    shown = [episode_html(row, heading_of(row)) for row in [*good, *bad]]
    label = str(model.get("label", model["name"]))[:120]
    settings = flat_settings(path / "models" / f"{model['name']}.toml")
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
