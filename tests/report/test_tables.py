import io
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from turnwise.report.formatting import format_interval
from turnwise.report.tables import run_table, seeds_table

SUMMARY = {
    "success_before": 0.2617,
    "success_after": 0.9102,
    "interval": [0.87, 0.94],
    "wall_s": 142.2,
    "steps": 120,
    "episodes": 30_720,
    "tokens": 3_100_000,
    "seed": 0,
}


def shown(table: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines() if line.strip()]


def test_the_closing_table_says_how_it_ended_and_what_to_type_next() -> None:
    assert shown(run_table(SUMMARY, Path("runs/[red]a"), "turnwise eval runs/a")) == [
        "success before 26.2 %",
        "success after 91.0 %",
        "95 % interval 87.0 to 94.0 %",
        "wall time 2:22",
        "steps 120",
        "episodes 30.7k",
        "sampled tokens 3.1M",
        "run folder runs/[red]a",
        "next turnwise eval runs/a",
    ]


def test_the_seeds_table_ends_with_mean_and_range() -> None:
    seeds = [SUMMARY, {**SUMMARY, "seed": 1, "success_after": 0.8, "wall_s": 150.0}]
    assert shown(seeds_table(seeds)) == [
        "seed before after 95 % interval wall time episodes",
        "0 26.2 % 91.0 % 87.0 to 94.0 % 2:22 30.7k",
        "1 26.2 % 80.0 % 87.0 to 94.0 % 2:30 30.7k",
        "mean 26.2 % 85.5 % 80.0 to 91.0 % over seeds 2:26 30.7k",
    ]


def test_one_seed_has_no_mean() -> None:
    assert len(shown(seeds_table([SUMMARY]))) == 2


def test_what_was_not_measured_is_a_dash() -> None:
    cut = {**SUMMARY, "success_after": None, "interval": None}
    assert "success after -" in shown(run_table(cut, Path("runs/a"), "x"))
    assert shown(seeds_table([cut, cut]))[-1] == "mean 26.2 % - - 2:22 30.7k"


@pytest.mark.parametrize(("ends", "text"), [(None, "-"), ([None, None], "-"), ((0.5, 1.0), "50.0 to 100.0 %")])
def test_interval(ends: list[float | None] | None, text: str) -> None:
    assert format_interval(ends) == text
