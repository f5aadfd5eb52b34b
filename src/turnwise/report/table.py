"""How a run ended, as tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnwise.record.numbers import MISSING, count, duration, percent
from turnwise.report.console import one_line

COUNTS = (
    ("episodes", "episodes"),
    ("left out, no reward", "unscored"),
    ("sampled tokens", "tokens"),
    ("demonstrations", "demonstrations"),
    ("tokens of answers", "answer_tokens"),
)
"""What a run had, if it had any."""


def closing_table(summary: Mapping[str, Any], run_folder: Path, next_line: str) -> RenderableType:
    """Of one run: its `summary.json` in words, where everything lies, and the one line to type next."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("success before", percent(summary["success_before"]))
    table.add_row("success after", Text(percent(summary["success_after"]), style="bold green"))
    table.add_row("95 % interval", interval(summary["interval"]))
    table.add_row("wall time", duration(summary["wall_s"]))
    table.add_row("steps", count(summary["steps"]))
    for label, key in COUNTS:
        if summary.get(key):
            table.add_row(label, count(summary[key]))
    table.add_row("run folder", one_line(str(run_folder)))
    table.add_row("next", Text(next_line, style="bold"))
    return Group(Text(), table, Text())


def seeds_table(summaries: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Of runs that differ by their seed: one row each, then the mean and the range, which is what a claim rests on."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for label in ("seed", "before", "after", "95 % interval", "wall time", "episodes"):
        table.add_column(label, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(
            str(summary["seed"]),
            percent(summary["success_before"]),
            percent(summary["success_after"]),
            interval(summary["interval"]),
            duration(summary["wall_s"]),
            count(summary["episodes"]),
        )
    if len(summaries) > 1:
        table.add_section()
        table.add_row(*_mean_row(summaries), style="bold")
    return Group(Text(), table, Text())


def interval(ends: Sequence[float | None] | None) -> str:
    """62.1 to 74.0 %"""
    if ends is None or None in ends:
        return MISSING
    low, high = ends
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def _mean_row(summaries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    afters = [summary["success_after"] for summary in summaries if summary["success_after"] is not None]
    return (
        "mean",
        percent(_mean(summaries, "success_before")),
        percent(_mean(summaries, "success_after")),
        f"{interval((min(afters), max(afters)))} over seeds" if afters else MISSING,
        duration(_mean(summaries, "wall_s")),
        count(_mean(summaries, "episodes")),
    )


def _mean(summaries: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [summary[key] for summary in summaries if summary[key] is not None]
    return sum(values) / len(values) if values else None
