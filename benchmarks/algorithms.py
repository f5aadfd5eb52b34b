"""Compare algorithms: success and time of a recipe for each value of a setting, over seeds.

    python benchmarks/algorithms.py --out runs/methods                      # the table of docs/results/presets.md
    python benchmarks/algorithms.py --out runs/losses --recipe bandit --vary algo.loss --values ppo,gspo,sapo \\
        --own "gspo: --algo.loss.clip_low=3e-4 --algo.loss.clip_high=4e-4" --seeds 0 --picture docs/losses.svg \\
        -- --rollout.groups=32 --rollout.group_size=8

Settings after `--` apply to every run, settings in `--own` to the runs of one value. Every run is a process with one
thread, `--jobs` of them at a time; finished runs are not repeated. `--picture` draws success over the steps, one panel
per value.
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


def run(args: argparse.Namespace, value: str, seed: int) -> dict[str, Any]:
    """Return the summary of one run, with its success at each step."""
    folder = train(args.recipe, args.out, f"{args.recipe}-{value}-{seed}", settings_of(args, value, seed))
    rows = training_rows(folder)
    return {
        "value": value,
        "success": [row["rollout/success"] for row in rows],
        "seconds": statistics.median(row["time/total_s"] for row in rows),
        **summary(folder),
    }


def settings_of(args: argparse.Namespace, value: str, seed: int) -> list[str]:
    """Return the options of `turnwise train RECIPE`. Settings of the value come last and so take precedence."""
    steps = [f"--train.steps={args.steps}"] if args.steps else []
    return [f"--{args.vary}={value}", f"--seed={seed}", *steps, *args.settings, *args.own.get(value, [])]


def table_of(results: list[dict[str, Any]], args: argparse.Namespace) -> Table:
    """Seconds are medians over the steps, which other load on the machine affects less than means."""
    table = Table(title=f"{args.recipe}: success on held-out tasks at temperature 0.5; each run on one thread")
    for column in (args.vary, "before", "after, by seed", "mean", "seconds per step"):
        table.add_column(column, justify="left" if column == args.vary else "right")
    for value in args.values:
        of_value = [result for result in results if result["value"] == value]
        after = [result["success_after"] for result in of_value]
        table.add_row(
            value,
            f"{statistics.mean(result['success_before'] for result in of_value):.1%}",
            "  ".join(f"{each:.1%}" for each in after),
            f"{statistics.mean(after):.1%}",
            f"{statistics.mean(result['seconds'] for result in of_value):.1f}",
        )
    return table


def picture(results: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Draw one panel per value. Point and number: success on held-out tasks after training, mean over the seeds."""
    panels = []
    for value in args.values:
        of_value = [result for result in results if result["value"] == value]
        after = statistics.mean(result["success_after"] for result in of_value)
        runs = [result["success"] for result in of_value]
        panels.append(Panel(runs=runs, title=value, after=after, label="success"))
    seeds = f"{len(args.seeds)} seed{'s' if len(args.seeds) > 1 else ''}"
    grid = Grid(columns=min(COLUMNS, len(panels)), width=PANEL_WIDTH, height=PANEL_HEIGHT)
    return small_multiples(f"{args.vary} on {args.recipe} with tiny, {seeds}", panels, grid)


def parse_value_settings(text: str) -> tuple[str, list[str]]:
    """Parse "gspo: --algo.loss.clip_low=3e-4" into the value and its options."""
    value, _, flags = text.partition(":")
    return value.strip(), shlex.split(flags)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse `words`; None: the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--recipe", default="frozen_lake")
    parser.add_argument("--vary", default="algo.preset", help="the setting to vary")
    parser.add_argument("--values", type=lambda text: text.split(","), default=METHODS)
    parser.add_argument(
        "--own", type=parse_value_settings, action="append", default=[], help="VALUE: settings of its runs"
    )
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="training steps; 0: the recipe's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--picture", type=Path, help="SVG file to write")
    parser.add_argument("settings", nargs="*", help="settings of every run")
    args = parser.parse_args(words)
    args.own = dict(args.own)
    if unknown := set(args.own) - set(args.values):
        parser.error(f"--own names {', '.join(sorted(unknown))}, which --values does not contain")
    return args


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    jobs = [(value, seed) for seed in args.seeds for value in args.values]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda job: run(args, *job), jobs))
    if args.picture:
        args.picture.write_text(picture(results, args))
    Console(width=110).print(table_of(results, args))


if __name__ == "__main__":
    main()
