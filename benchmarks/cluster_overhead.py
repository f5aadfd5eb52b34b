"""Overhead of Ray: the same job in one process, and with one engine replica and one learner rank in actors.

    python benchmarks/cluster_overhead.py [--steps 6] [--repeats 3] [--model tiny] [--out FOLDER]

Both sides use one thread and run in turn. A measurement is the median seconds of a run's steps after the first;
starting the cluster is not part of it. Each side's best run counts. The learner waits for the engine in both, so a
second core gives the actors no advantage.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from runs import train, training_rows

SIDES = {"one process": [], "Ray": ["--cluster.engines", "1", "--cluster.learners", "1"]}
PHASES = ("rollout", "estimate", "update", "record", "total")


def measure(side: str, model: str, steps: int, out: Path, name: str) -> dict[str, float]:
    """Return the median seconds of each phase of a run's steps after the first."""
    settings = ["--model.name", model, "--train.steps", str(steps), "--eval.episodes", "1", *SIDES[side]]
    rows = training_rows(train("frozen_lake", out, name, settings))[1:]
    return {phase: statistics.median(row[f"time/{phase}_s"] for row in rows) for phase in PHASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for repeat in range(args.repeats):
        for number, side in enumerate(SIDES):
            found[side].append(measure(side, args.model, args.steps, out, f"{number}-{repeat}"))
    table = Table("seconds per step", *PHASES)
    best = {side: {phase: min(row[phase] for row in rows) for phase in PHASES} for side, rows in found.items()}
    for side, row in best.items():
        table.add_row(side, *(f"{row[phase]:.3f}" for phase in PHASES))
    local, remote = best.values()
    table.add_row("overhead", *(f"{100 * (remote[phase] / local[phase] - 1):+.1f} %" for phase in PHASES))
    Console().print(table)


if __name__ == "__main__":
    main()
