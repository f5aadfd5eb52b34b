"""Result tables in the terminal: of a run, of several seeds, of evaluated models."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnwise.report.formatting import (
    MISSING,
    format_count,
    format_decimal,
    format_duration,
    format_energy,
    format_interval,
    format_length,
    format_money,
    format_p_value,
    format_percent,
    format_points,
)
from turnwise.report.terminal import sanitize_line

Metrics = Mapping[str, float]
PASS = "pass_at_"
LABEL_WIDTH = 12
"""Minimum width of a model's name in a narrow terminal."""
COUNTS = (
    ("episodes", "episodes"),
    ("dropped episodes", "dropped"),
    ("dropped in evaluations", "eval_dropped"),
    ("sampled tokens", "tokens"),
    ("demonstrations", "demonstrations"),
    ("held out", "held_out"),
    ("answer tokens", "answer_tokens"),
)
"""Label and summary key of the counts that `run_table` shows if they are not 0."""


def run_table(summary: Mapping[str, Any], run_folder: Path) -> RenderableType:
    """Tabulate a run's `summary.json` and its folder."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    if "success_before" in summary:
        table.add_row("success before", format_percent(summary["success_before"]))
        table.add_row("success after", Text(format_percent(summary["success_after"]), style="bold green"))
        table.add_row("95 % interval", format_interval(summary["interval"]))
    elif summary["loss_before"] is not None:
        table.add_row("held-out loss before", format_decimal(summary["loss_before"]))
        table.add_row("held-out loss after", Text(format_decimal(summary["loss_after"]), style="bold green"))
    else:
        table.add_row("loss of the last step", format_decimal(summary["loss"]))
    table.add_row("wall time", format_duration(summary["wall_s"]))
    table.add_row("steps", format_count(summary["steps"]))
    if summary.get("cost") is not None:
        table.add_row("cost", format_money(summary["cost"]))
    if summary.get("energy_wh") is not None:
        table.add_row("energy", format_energy(summary["energy_wh"]))
    for label, key in COUNTS:
        if summary.get(key):
            table.add_row(label, format_count(summary[key]))
    if summary.get("dropped_reason"):
        table.add_row("last failure", sanitize_line(summary["dropped_reason"]))
    table.add_row("run folder", sanitize_line(str(run_folder)))
    return Group(Text(), table, Text())


def seeds_table(summaries: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Tabulate runs that differ only in their seed, with the mean over seeds and its 95 % interval in the last row."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for label in ("seed", "before", "after", "95 % interval", "wall time", "episodes"):
        table.add_column(label, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(
            str(summary["seed"]),
            format_percent(summary["success_before"]),
            format_percent(summary["success_after"]),
            format_interval(summary["interval"]),
            format_duration(summary["wall_s"]),
            format_count(summary["episodes"]),
        )
    if len(summaries) > 1:
        table.add_section()
        table.add_row(*_mean_row(summaries), style="bold")
    return Group(Text(), table, Text())


T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom."""


def _interval_of_mean(rates: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of a mean over seeds, by Student's t, within 0 to 1."""
    degrees = len(rates) - 1
    quantile = T_QUANTILES[degrees - 1] if degrees <= len(T_QUANTILES) else 1.96 + 2.5 / degrees
    half = quantile * stdev(rates) / math.sqrt(len(rates))
    return max(fmean(rates) - half, 0.0), min(fmean(rates) + half, 1.0)


def _mean_row(summaries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    afters = [summary["success_after"] for summary in summaries if summary["success_after"] is not None]
    return (
        "mean",
        format_percent(_mean(summaries, "success_before")),
        format_percent(_mean(summaries, "success_after")),
        f"{format_interval(_interval_of_mean(afters))} over seeds" if len(afters) > 1 else MISSING,
        format_duration(_mean(summaries, "wall_s")),
        format_count(_mean(summaries, "episodes")),
    )


def _mean(summaries: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [summary[key] for summary in summaries if summary[key] is not None]
    return sum(values) / len(values) if values else None


def evaluation_table(label: str, tasks: str, metrics: Metrics) -> RenderableType:
    """Tabulate the results of one model."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("model", sanitize_line(label))
    table.add_row("tasks", sanitize_line(tasks))
    table.add_row("success", Text(format_percent(metrics["success"]), style="bold green"))
    table.add_row("95 % interval", _interval(metrics))
    for name, value in _passes(metrics):
        table.add_row(name, format_percent(value))
    table.add_row("episodes", format_count(metrics["episodes"]))
    table.add_row("dropped", format_count(metrics["dropped"]))
    table.add_row("mean return", format_decimal(metrics["reward"]))
    table.add_row("turns", format_length(metrics["turns"]))
    table.add_row("invalid turns", format_percent(metrics["invalid"]))
    table.add_row("sampled tokens", format_length(metrics["sampled_tokens"]))
    return Group(Text(), table, Text())


def models_table(rows: Sequence[tuple[str, Metrics]], tasks: str) -> RenderableType:
    """Tabulate several models on the same tasks. Turns and tokens are means per episode; pass@k uses all attempts."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    passes = [name for name, _ in _passes(rows[0][1])[-1:]]
    dropped = any(metrics["dropped"] for _, metrics in rows)
    table.add_column("model", overflow="fold", min_width=min(LABEL_WIDTH, max(len(label) for label, _ in rows)))
    for label in ("success", "95 % interval", *passes, "return", "turns", "invalid", "tokens", *["dropped"] * dropped):
        table.add_column(label, justify="right", no_wrap=True)
    for label, metrics in rows:
        table.add_row(
            sanitize_line(label),
            Text(format_percent(metrics["success"]), style="bold green"),
            _interval(metrics),
            *(format_percent(value) for _, value in _passes(metrics)[-1:]),
            format_decimal(metrics["reward"]),
            format_length(metrics["turns"]),
            format_percent(metrics["invalid"]),
            format_length(metrics["sampled_tokens"]),
            *[format_count(metrics["dropped"])] * dropped,
        )
    return Group(Text(), sanitize_line(tasks), table, Text())


def comparison_table(first: str, rows: Sequence[tuple[str, Mapping[str, Any] | None]]) -> RenderableType:
    """Tabulate each other model's paired difference to the first, with the tests used in the line below."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(sanitize_line(f"vs {first}"), overflow="fold")
    for label in ("success", "95 % interval", "p", "return", "p", "tasks"):
        table.add_column(label, justify="right", no_wrap=True)
    for label, pair in rows:
        table.add_row(sanitize_line(label), *([MISSING] * 6 if pair is None else _differences(pair)))
    pairs = [pair for _, pair in rows if pair is not None]
    return Group(table, Text(_tests(pairs), style="dim"), Text()) if pairs else Group(table, Text())


def _differences(pair: Mapping[str, Any]) -> list[str]:
    return [
        format_points(pair["success"]),
        f"{format_points(pair['low'])} to {format_points(pair['high'])}",
        format_p_value(pair["p"]),
        f"{pair['reward']:+.3f}",
        format_p_value(pair["reward_p"]),
        format_count(pair["tasks"]),
    ]


def _tests(pairs: Sequence[Mapping[str, Any]]) -> str:
    success = " or ".join(dict.fromkeys(pair["test"] for pair in pairs))
    ends = " or ".join(dict.fromkeys(pair["interval"] for pair in pairs))
    correction = f"; Holm correction for {len(pairs)} comparisons" if len(pairs) > 1 else ""
    return f"success in percentage points; p: {success}, for the return a sign-flip test{correction}; interval: {ends}"


def _interval(metrics: Metrics) -> str:
    return format_interval((metrics["success_low"], metrics["success_high"]))


def _passes(metrics: Metrics) -> list[tuple[str, float | None]]:
    """Return ("pass@4", value) pairs in the order of k."""
    values = sorted((int(key.removeprefix(PASS)), value) for key, value in metrics.items() if key.startswith(PASS))
    return [(f"pass@{k}", None if math.isnan(value) else value) for k, value in values]
