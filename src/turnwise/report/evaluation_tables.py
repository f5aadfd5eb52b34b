"""How agents did in an evaluation, as tables: one alone from top to bottom, several side by side."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnwise.record.numbers import MISSING, count, decimal, length, percent
from turnwise.report.console import one_line
from turnwise.report.table import interval

Metrics = Mapping[str, float]
PASS = "eval/pass_at_"
LABEL_WIDTH = 12
"""Of a model's name, at least, where the terminal is narrow."""


def evaluation_table(label: str, tasks: str, metrics: Metrics) -> RenderableType:
    """Of one agent: what was measured, on what, and how sure it is."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("model", one_line(label))
    table.add_row("tasks", one_line(tasks))
    table.add_row("success", Text(percent(metrics["eval/success"]), style="bold green"))
    table.add_row("95 % interval", _interval(metrics))
    for name, value in _passes(metrics):
        table.add_row(name, percent(value))
    table.add_row("episodes", count(metrics["eval/episodes"]))
    table.add_row("broken episodes", count(metrics["eval/errors"]))
    table.add_row("mean return", decimal(metrics["eval/reward"]))
    table.add_row("turns", length(metrics["eval/turns"]))
    table.add_row("invalid turns", percent(metrics["eval/invalid"]))
    table.add_row("sampled tokens", length(metrics["eval/sampled_tokens"]))
    return Group(Text(), table, Text())


def side_by_side(rows: Sequence[tuple[str, Metrics]], tasks: str) -> RenderableType:
    """Several agents on equal tasks, a row each; turns and tokens are those of an episode, pass@k is of all tries."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    passes = [name for name, _ in _passes(rows[0][1])[-1:]]
    broken = any(metrics["eval/errors"] for _, metrics in rows)
    table.add_column("model", overflow="fold", min_width=min(LABEL_WIDTH, max(len(label) for label, _ in rows)))
    for label in ("success", "95 % interval", *passes, "return", "turns", "invalid", "tokens", *["broken"] * broken):
        table.add_column(label, justify="right", no_wrap=True)
    for label, metrics in rows:
        table.add_row(
            one_line(label),
            Text(percent(metrics["eval/success"]), style="bold green"),
            _interval(metrics),
            *(percent(value) for _, value in _passes(metrics)[-1:]),
            decimal(metrics["eval/reward"]),
            length(metrics["eval/turns"]),
            percent(metrics["eval/invalid"]),
            length(metrics["eval/sampled_tokens"]),
            *[count(metrics["eval/errors"])] * broken,
        )
    return Group(Text(), one_line(tasks), table, Text())


def paired_table(first: str, rows: Sequence[tuple[str, Mapping[str, Any] | None]]) -> RenderableType:
    """Each of the others against the first, task by task. The line below says by which tests."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(one_line(f"against {first}"), overflow="fold")
    for label in ("success", "95 % interval", "p", "return", "p", "tasks"):
        table.add_column(label, justify="right", no_wrap=True)
    for label, pair in rows:
        table.add_row(one_line(label), *([MISSING] * 6 if pair is None else _differences(pair)))
    made = [pair for _, pair in rows if pair is not None]
    return Group(table, Text(_tests(made), style="dim"), Text()) if made else Group(table, Text())


def probability(p: float) -> str:
    """Four places where that says something."""
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def points(difference: float) -> str:
    """A difference of two rates: +4.2, in percentage points."""
    return f"{100 * difference:+.1f}"


def _differences(pair: Mapping[str, Any]) -> list[str]:
    return [
        points(pair["success"]),
        f"{points(pair['low'])} to {points(pair['high'])}",
        probability(pair["p"]),
        f"{pair['reward']:+.3f}",
        probability(pair["reward_p"]),
        count(pair["tasks"]),
    ]


def _tests(made: Sequence[Mapping[str, Any]]) -> str:
    success = " or ".join(dict.fromkeys(pair["test"] for pair in made))
    ends = " or ".join(dict.fromkeys(pair["interval"] for pair in made))
    several = f"; raised by Holm's rule for {len(made)} comparisons" if len(made) > 1 else ""
    return f"points of success; p: {success}, of the return sign-flip over tasks{several}; interval: {ends}"


def _interval(metrics: Metrics) -> str:
    return interval((metrics["eval/success_low"], metrics["eval/success_high"]))


def _passes(metrics: Metrics) -> list[tuple[str, float | None]]:
    """("pass@4", its value), by k."""
    found = sorted((int(key.removeprefix(PASS)), value) for key, value in metrics.items() if key.startswith(PASS))
    return [(f"pass@{k}", None if math.isnan(value) else value) for k, value in found]
