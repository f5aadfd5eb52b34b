"""Algorithms side by side: success and time of a recipe with each, over seeds.

    python benchmarks/algorithms.py --out runs/methods                      # the table of docs/algorithms.md
    python benchmarks/algorithms.py --out runs/losses --recipe bandit --vary algo.loss --values ppo,gspo,sapo \\
        --own "gspo: --algo.clip_low=3e-4 --algo.clip_high=4e-4" --seeds 0 --picture docs/losses.svg \\
        -- --rollout.groups=32 --rollout.group_size=8

What stands after `--` goes to every run, what stands in `--own` to those of one value. Every run is one process with
one thread, `--jobs` of them at a time; runs that are finished are not run again. `--picture` draws success over the
steps, a panel a value.
"""

import argparse
import os
import shlex
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from panels import Grid, Panel, small_multiples
from rich.console import Console
from rich.table import Table
from runs import summary, train, training_rows

METHODS = ("reinforce_pp", "starpo_grpo", "starpo_ppo", "starpo_s", "dapo", "dr_grpo", "gspo", "bi_level")
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 4, 190, 90


def run(given: argparse.Namespace, value: str, seed: int) -> dict[str, Any]:
    """What one run came to, with its success at each step."""
    folder = train(given.recipe, given.out, f"{given.recipe}-{value}-{seed}", settings_of(given, value, seed))
    rows = training_rows(folder)
    return {
        "value": value,
        "success": [row["rollout/success"] for row in rows],
        "seconds": statistics.median(row["time/total_s"] for row in rows),
        **summary(folder),
    }


def settings_of(given: argparse.Namespace, value: str, seed: int) -> list[str]:
    """What `turnwise train RECIPE` is told, in this order: a value's own settings come last."""
    steps = [f"--train.steps={given.steps}"] if given.steps else []
    return [f"--{given.vary}={value}", f"--seed={seed}", *steps, *given.settings, *given.own.get(value, [])]


def table_of(results: list[dict[str, Any]], given: argparse.Namespace) -> Table:
    """Seconds are medians over the steps: what runs beside a step, or stops it for a while, is not the algorithm's."""
    table = Table(title=f"{given.recipe}: success on held-out tasks at temperature 0.5; each run on one thread")
    for column in (given.vary, "before", "after, by seed", "mean", "seconds a step"):
        table.add_column(column, justify="left" if column == given.vary else "right")
    for value in given.values:
        own = [result for result in results if result["value"] == value]
        after = [result["success_after"] for result in own]
        table.add_row(
            value,
            f"{statistics.mean(result['success_before'] for result in own):.1%}",
            "  ".join(f"{each:.1%}" for each in after),
            f"{statistics.mean(after):.1%}",
            f"{statistics.mean(result['seconds'] for result in own):.1f}",
        )
    return table


def picture(results: list[dict[str, Any]], given: argparse.Namespace) -> str:
    """A panel a value; the point and the number are success on held-out tasks after training, the mean of the seeds."""
    panels = []
    for value in given.values:
        own = [result for result in results if result["value"] == value]
        after = statistics.mean(result["success_after"] for result in own)
        runs = [result["success"] for result in own]
        panels.append(Panel(runs=runs, title=value, after=after, label="success"))
    seeds = f"{len(given.seeds)} seed{'s' if len(given.seeds) > 1 else ''}"
    grid = Grid(columns=min(COLUMNS, len(panels)), width=PANEL_WIDTH, height=PANEL_HEIGHT)
    return small_multiples(f"{given.vary} on {given.recipe} with tiny, {seeds}", panels, grid)


def own_settings(text: str) -> tuple[str, list[str]]:
    """ "gspo: --algo.clip_low=3e-4" as the value and its flags."""
    value, _, flags = text.partition(":")
    return value.strip(), shlex.split(flags)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """From the command line, or from `words`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the runs go")
    parser.add_argument("--recipe", default="frozen_lake")
    parser.add_argument("--vary", default="algo.preset", help="the setting that differs")
    parser.add_argument("--values", type=lambda text: text.split(","), default=METHODS)
    parser.add_argument("--own", type=own_settings, action="append", default=[], help="VALUE: settings of its runs")
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="default: the recipe's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--picture", type=Path, help="where the picture goes")
    parser.add_argument("settings", nargs="*", help="of every run")
    given = parser.parse_args(words)
    given.own = dict(given.own)
    if strange := set(given.own) - set(given.values):
        parser.error(f"--own is for one of --values, and {', '.join(sorted(strange))} is none of them")
    return given


def main() -> None:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [(value, seed) for seed in given.seeds for value in given.values]
    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(pool.map(lambda each: run(given, *each), wanted))
    if given.picture:
        given.picture.write_text(picture(results, given))
    Console(width=110).print(table_of(results, given))


if __name__ == "__main__":
    main()
