"""Overhead of Ray: the same job in one process, and with one engine replica and one learner rank in actors.

    python benchmarks/cluster_overhead.py [--steps 6] [--repeats 3] [--recipe frozen_lake] [--out FOLDER] [SETTINGS]

Further settings are those of `turnwise train`, such as `--model.name smollm2-135m`. Both sides use one thread and run
in turn. A measurement is the median seconds of a run's steps after the first; starting the cluster is not part of it.
Each side's best run counts. The learner waits for the engine in both, so a second core gives the actors no advantage.
The overhead of a phase is a share of the whole step in one process.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from runs import train, training_rows

SIDES = {"one process": [], "Ray": ["--cluster.engines", "1", "--cluster.learners", "1"]}
PHASES = ("publish", "rollout", "estimate", "update", "record", "total")


def measure(side: str, recipe: str, settings: list[str], out: Path, name: str) -> dict[str, float]:
    """Return the median seconds of each phase of a run's steps after the first."""
    rows = training_rows(train(recipe, out, name, [*settings, "--eval.episodes", "1", *SIDES[side]]))[1:]
    return {phase: statistics.median(row[f"time/{phase}_s"] for row in rows) for phase in PHASES}


def print_table(found: dict[str, list[dict[str, float]]]) -> None:
    table = Table("seconds per step", *PHASES)
    best = {side: {phase: min(row[phase] for row in rows) for phase in PHASES} for side, rows in found.items()}
    for side, row in best.items():
        table.add_row(side, *(f"{row[phase]:.3f}" for phase in PHASES))
    local, remote = best.values()
    added = {phase: remote[phase] - local[phase] for phase in PHASES}
    table.add_row("overhead", *(f"{100 * added[phase] / local['total']:+.1f} %" for phase in PHASES))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--recipe", default="frozen_lake")
    parser.add_argument("--out", type=Path)
    args, settings = parser.parse_known_args()
    out = args.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    settings += ["--train.steps", str(args.steps)]
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for repeat in range(args.repeats):
        for number, side in enumerate(SIDES):
            found[side].append(measure(side, args.recipe, settings, out, f"{number}-{repeat}"))
        print_table(found)


if __name__ == "__main__":
    main()
