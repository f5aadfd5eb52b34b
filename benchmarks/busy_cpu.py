"""B2b: training steps beside a busy process, with OpenMP threads that sleep at barriers and with threads that spin.

    python benchmarks/busy_cpu.py [--steps 5] [--repeats 3] [--busy 1] [--out FOLDER]

Each reading is `turnwise train frozen_lake` with its default threads, one per core; the median tokens/s of its steps
but the first. A busy process takes one core in full, so beside N of them on C cores a step may keep 1 - N / C of its
speed, or more: threads that share a core get half of it each.

    sleep   what turnwise sets: OMP_WAIT_POLICY=PASSIVE, GOMP_SPINCOUNT=0
    spin    libgomp's own default
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table
from runs import training_rows

WAITING = {"sleep": {}, "spin": {"GOMP_SPINCOUNT": "300000"}}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that compute without a pause, one core each."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def measure(waiting: str, busy: int, steps: int, out: Path, name: str) -> float:
    """Median tokens/s of a run's steps after the first."""
    settings = ["--train.steps", str(steps), "--eval.episodes", "1", "--record.folder", str(out), "--record.name", name]
    command = [sys.executable, "-m", "turnwise", "train", "frozen_lake", *settings]
    with busy_processes(busy), (out / f"{name}.log").open("w") as log:
        subprocess.run(command, check=True, env=os.environ | WAITING[waiting], stdout=log, stderr=log)
    return statistics.median(row["time/tokens_per_s"] for row in training_rows(out / name)[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--busy", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    measure("sleep", 0, 2, out, "warm-up")  # fills the cache of warm models
    cases = [(waiting, busy) for busy in (0, given.busy) for waiting in WAITING]
    found: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for repeat in range(given.repeats):
        for waiting, busy in cases:
            found[waiting, busy].append(measure(waiting, busy, given.steps, out, f"{waiting}-{busy}-{repeat}"))
    table = Table("threads", "busy processes", "tokens/s", "all readings", "of the best quiet median")
    medians = {case: statistics.median(readings) for case, readings in found.items()}
    quiet = max(medians[waiting, 0] for waiting in WAITING)
    for (waiting, busy), readings in found.items():
        share = f"{medians[waiting, busy] / quiet:.2f}"
        spread = f"{min(readings):.0f} to {max(readings):.0f}"
        table.add_row(waiting, str(busy), f"{medians[waiting, busy]:.0f}", spread, share)
    Console().print(table)


if __name__ == "__main__":
    main()
