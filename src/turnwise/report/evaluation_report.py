"""The values that the HTML report of an evaluation shows (template `evaluation.html`)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnwise.record.evaluation_folder import read_plan
from turnwise.record.images import IMAGES_FOLDER
from turnwise.record.steps import finite_number
from turnwise.report.episodes import choose_from_file, episode_heading, view_episode
from turnwise.report.formatting import (
    format_count,
    format_decimal,
    format_length,
    format_p_value,
    format_percent,
    format_points,
)
from turnwise.report.run_report import read_flat_settings, read_json_object
from turnwise.report.success_chart import SuccessBar, draw_success_chart

MAX_MODELS = 20
RATES = ("success", "success_low", "success_high")

Row = Mapping[str, Any]


def evaluation_context(path: Path) -> dict[str, Any]:
    """Return the template variables of an evaluation's report; results are missing until it has finished."""
    plan = read_plan(path)
    summary = read_json_object(path / "summary.json") or {}
    models = [model for model in _mappings(plan.get("models")) if _is_file_name(model.get("name"))][:MAX_MODELS]
    results = [mapping for mapping in _mappings(summary.get("models")) if None not in _numbers(mapping, RATES)]
    environment = str(plan.get("environment"))
    return {
        "title": path.resolve().name,
        "subtitle": f"{environment}, {plan.get('split')} split, tasks {str(plan.get('seeds'))[:80]}",
        "numbers": _headline_numbers(plan, summary, len(models)),
        "success_chart": _success_chart(results, environment, int(finite_number(plan.get("tries")) or 1)),
        "results": [_result_cells(result) for result in results],
        "comparisons": [_comparison_cells(pair) for pair in _mappings(summary.get("comparisons"))],
        "models": [_model_section(path, model) for model in models],
    }


def _headline_numbers(plan: Row, summary: Row, num_models: int) -> list[tuple[str, str]]:
    numbers = [("state", "finished" if summary.get("finished") else "not finished")]
    if summary:
        numbers.append(("tasks", format_count(finite_number(summary.get("tasks")))))
    return [*numbers, ("attempts per task", str(plan.get("tries", 1))[:20]), ("models", str(num_models))]


def _success_chart(results: Sequence[Row], environment: str, tries: int) -> Markup:
    bars = [
        SuccessBar(
            label=str(result.get("label")),
            success=float(result["success"]),
            low=float(result["success_low"]),
            high=float(result["success_high"]),
            pass_at_k=finite_number(result.get(f"pass_at_{tries}")) if tries > 1 else None,
        )
        for result in results
    ]
    return Markup(draw_success_chart(bars, environment[:60], tries))


def _result_cells(result: Row) -> tuple[str, ...]:
    return (
        str(result.get("label"))[:120],
        *map(format_percent, _numbers(result, RATES)),
        format_decimal(finite_number(result.get("reward"))),
        format_length(finite_number(result.get("turns"))),
        format_percent(finite_number(result.get("invalid"))),
        format_length(finite_number(result.get("sampled_tokens"))),
        format_count(finite_number(result.get("episodes"))),
        format_count(finite_number(result.get("dropped"))),
    )


def _comparison_cells(pair: Row) -> tuple[str, ...]:
    values = _numbers(pair, ("success", "low", "high", "p"))
    difference, low, high, p = (math.nan if value is None else value for value in values)
    return (
        f"{pair.get('second')} vs {pair.get('first')}"[:200],
        format_points(difference),
        format_points(low),
        format_points(high),
        format_p_value(p),
        str(pair.get("test", ""))[:60],
    )


def _model_section(path: Path, model: Row) -> dict[str, Any]:
    best, worst, num_succeeded, num_episodes = choose_from_file(path / "trajectories" / f"{model['name']}.jsonl")
    return {
        "label": str(model.get("label", model["name"]))[:120],
        "num_succeeded": num_succeeded,
        "num_episodes": num_episodes,
        "episodes": [view_episode(row, episode_heading(row), path / IMAGES_FOLDER) for row in [*best, *worst]],
        "settings": list(read_flat_settings(path / "models" / f"{model['name']}.toml").items()),
    }


def _numbers(row: Row, keys: Sequence[str]) -> list[float | None]:
    return [finite_number(row.get(key)) for key in keys]


def _mappings(value: Any) -> list[Row]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _is_file_name(name: Any) -> bool:
    """Refuse names with a path in them: a plan of unknown origin must not lead out of its folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")
