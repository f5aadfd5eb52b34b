"""Algorithms side by side: success and time of a recipe with each, over seeds.

    python benchmarks/algorithms.py --out runs/methods                      # the table of docs/algorithms.md
    python benchmarks/algorithms.py --out runs/advantages --recipe bandit --vary algo.advantage \\
        --values gae,grpo,rloo --seeds 0 --curves docs/curves -- --rollout.groups 32 --rollout.group_size 8

What stands after `--` goes to every run. Every run is one process with one thread, `--jobs` of them at a time; runs
that are finished are not run again. `--curves` copies the learning curve of each value's first seed there.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

METHODS = ("reinforce_pp", "starpo_grpo", "starpo_ppo", "starpo_s", "dapo", "dr_grpo", "gspo", "bi_level")


def run(given: argparse.Namespace, value: str, seed: int) -> dict[str, Any]:
    """The summary of one run; from its folder where it is finished."""
    name = f"{given.recipe}-{value}-{seed}"
    folder = given.out / name
    if not (folder / "summary.json").exists():
        command = [sys.executable, "-m", "turnwise", "train", given.recipe, f"--{given.vary}={value}", f"--seed={seed}"]
        settings = [f"--record.folder={given.out}", f"--name={name}", "--system.threads=1", *given.settings]
        if given.steps:
            settings.append(f"--train.steps={given.steps}")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (given.out / f"{name}.log").open("w") as log:
            subprocess.run([*command, *settings], check=True, env=environment, stdout=log, stderr=log)
    if given.curves and seed == given.seeds[0]:
        given.curves.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "curve.svg", given.curves / f"{value}.svg")
    return {"value": value, "seconds": seconds_a_step(folder), **json.loads((folder / "summary.json").read_text())}


def seconds_a_step(folder: Path) -> float:
    """The median: what runs beside a step, or stops it for a while, is not the algorithm's."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["time/total_s"] for row in rows if "rollout/success" in row)


def table_of(results: list[dict[str, Any]], given: argparse.Namespace) -> Table:
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the runs go")
    parser.add_argument("--recipe", default="frozen_lake")
    parser.add_argument("--vary", default="algo.preset", help="the setting that differs")
    parser.add_argument("--values", type=lambda text: text.split(","), default=METHODS)
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="default: the recipe's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--curves", type=Path, help="where learning curves are copied to")
    parser.add_argument("settings", nargs="*", help="of every run")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [(value, seed) for seed in given.seeds for value in given.values]
    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(pool.map(lambda each: run(given, *each), wanted))
    Console(width=110).print(table_of(results, given))


if __name__ == "__main__":
    main()
