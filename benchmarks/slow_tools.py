"""B6: `turnwise train` with slow tools: independent episodes compared with turns in lock-step.

    python benchmarks/slow_tools.py [--episodes 1024] [--in-flight 256] [--repeats 1] [--out FOLDER]

Each side is one training step of the command with default settings except the number of episodes. Each of the 5 turns
of an episode waits for a tool with log-normal latency: median 0.5 s, 99th percentile 8 s, and equal for equal calls on
both sides. In lock-step, as in many trainers, no episode samples its next turn before the slowest tool of the batch has
answered: the same engine, model and tools, with a barrier after the tool.

    independent   the default
    lock-step     a barrier over all running episodes after every tool call
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from runs import training_rows
from slow_tool_env import PARTIES, TURNS

GROUP_SIZE = 16
ENV = Path(__file__).with_name("slow_tool_env.py").resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    order: str
    rollout_s: float
    command_s: float
    turns: float


def run(order: str, name: str, out: Path, episodes: int, in_flight: int) -> Measurement:
    """Run one training step. Order "warm-up": tools are instant; it caches the warmed-up model."""
    command = [sys.executable, "-m", "turnwise", "train", f"{ENV}:Slow"]
    settings = {
        "train.steps": 1,
        "rollout.groups": episodes // GROUP_SIZE,
        "rollout.group_size": GROUP_SIZE,
        "rollout.in_flight": in_flight,
        "rollout.trial_s": 0,  # single episodes would wait for the others at the barrier
        "eval.episodes": 1,
        "record.folder": out,
        "record.name": name,
    }
    parties = {"independent": "1", "lock-step": str(in_flight)}
    env = {**os.environ, **({PARTIES: parties[order]} if order in parties else {})}
    began = time.perf_counter()
    with (out / f"{name}.log").open("w") as log:
        options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        subprocess.run([*command, *options], check=True, env=env, stdout=log, stderr=log)
    command_s = time.perf_counter() - began
    (row,) = training_rows(out / name)
    assert row["rollout/episodes"] == episodes and row["rollout/turns"] == TURNS, "an episode is missing or short"
    return Measurement(order=order, rollout_s=row["time/rollout_s"], command_s=command_s, turns=episodes * TURNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.episodes % args.in_flight or args.episodes % GROUP_SIZE:
        parser.error(f"--episodes must be a multiple of --in-flight and of {GROUP_SIZE}")
    out = Path(tempfile.mkdtemp(prefix="slow_tools_")) if args.out is None else args.out
    out.mkdir(parents=True, exist_ok=True)
    run("warm-up", "warm-up", out, 4 * GROUP_SIZE, args.in_flight)
    table = Table("order", "rollout", "whole command", "turns", "rollout, ratio")
    ratios = []
    for number in range(args.repeats):
        sides = [
            run(order, f"{order}-{number}", out, args.episodes, args.in_flight)
            for order in ("independent", "lock-step")
        ]
        ratios.append(sides[1].rollout_s / sides[0].rollout_s)
        for each in sides:
            numbers = (f"{each.rollout_s:.1f} s", f"{each.command_s:.1f} s", f"{each.turns:.0f}")
            table.add_row(each.order, *numbers, f"{each.rollout_s / sides[0].rollout_s:.2f}")
    console = Console(width=100)
    console.print(table)
    console.print(f"lock-step takes {statistics.median(ratios):.2f} times as long (target: at least 2.5)")


if __name__ == "__main__":
    main()
