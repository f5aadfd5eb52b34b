"""Start-up time of commands that need no model: help, lists, mistyped names.

    python benchmarks/start_up.py [--repeats 9]

CPU is the CPU time of the whole process and wall its wall-clock time, each the minimum over the repeats. "libraries"
only imports the command line's libraries: a lower bound for every command.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track
from rich.table import Table

ALLOWED_S = 0.5
"""CPU time allowed for a command."""
COMMANDS = (
    "--help",
    "envs",
    "recipes",
    "trian",
    "train frozn_lake",
    "train frozen_lake --stpes 3",
    "train frozen_lake --algo.clip_hi 3",
)
LIBRARIES = "import cyclopts, pydantic, rich.console, rich.table"


@dataclass(frozen=True, kw_only=True)
class Cost:
    cpu_s: float
    wall_s: float


def measure(command: list[str], repeats: int) -> Cost:
    """Return the minimum over the repeats."""
    costs = [run_once(command) for _ in range(repeats)]
    return Cost(cpu_s=min(cost.cpu_s for cost in costs), wall_s=min(cost.wall_s for cost in costs))


def run_once(command: list[str]) -> Cost:
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *command], capture_output=True, check=False)
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(cpu_s=cpu_s, wall_s=time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    console = Console()
    named = {"libraries": ["-c", LIBRARIES]} | {text: ["-m", "turnwise", *text.split()] for text in COMMANDS}
    table = Table("command", "CPU ms", "wall ms", f"target {ALLOWED_S * 1000:.0f} ms CPU")
    for name, command in track(named.items(), console=console, transient=True):
        cost = measure(command, repeats)
        verdict = "met" if cost.cpu_s < ALLOWED_S else "missed"
        table.add_row(name, f"{cost.cpu_s * 1000:.0f}", f"{cost.wall_s * 1000:.0f}", verdict)
    console.print(table)


if __name__ == "__main__":
    main()
