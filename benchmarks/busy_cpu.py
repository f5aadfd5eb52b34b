"""B2b: speed of training beside a busy process, with OpenMP threads that sleep or spin at barriers.

    python benchmarks/busy_cpu.py [--steps 5] [--repeats 3] [--busy 1] [--out FOLDER] [SETTINGS]

Each measurement runs `turnwise train frozen_lake` with its default threads, one per core, and takes the median
tokens/s of its steps without the first. Further settings are those of `turnwise train`. A busy process uses one whole
core. Beside N of them on C cores, training can keep at least 1 - N / C of its speed, since threads that share a core
get half of it each.

    sleep   turnwise's setting: OMP_WAIT_POLICY=PASSIVE, GOMP_SPINCOUNT=0
    spin    libgomp's default
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

WAIT_POLICIES = {"sleep": {}, "spin": {"GOMP_SPINCOUNT": "300000"}}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that use one core each."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def measure(policy: str, busy: int, settings: list[str], out: Path, name: str) -> float:
    """Return the median tokens/s of a run's steps after the first."""
    own = ["--eval.episodes", "1", "--record.folder", str(out), "--record.name", name]
    command = [sys.executable, "-m", "turnwise", "train", "frozen_lake", *own, *settings]
    with busy_processes(busy), (out / f"{name}.log").open("w") as log:
        subprocess.run(command, check=True, env=os.environ | WAIT_POLICIES[policy], stdout=log, stderr=log)
    return statistics.median(row["time/tokens_per_s"] for row in training_rows(out / name)[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--busy", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args, settings = parser.parse_known_args()
    settings += ["--train.steps", str(args.steps)]
    out = args.out or Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    measure("sleep", 0, settings, out, "warm-up")  # caches the warmed-up model
    cases = [(policy, busy) for busy in (0, args.busy) for policy in WAIT_POLICIES]
    measured: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for repeat in range(args.repeats):
        for policy, busy in cases:
            measured[policy, busy].append(measure(policy, busy, settings, out, f"{policy}-{busy}-{repeat}"))
    table = Table("threads", "busy processes", "tokens/s", "range", "share of the best without load")
    medians = {case: statistics.median(rates) for case, rates in measured.items()}
    quiet = max(medians[policy, 0] for policy in WAIT_POLICIES)
    for (policy, busy), rates in measured.items():
        share = f"{medians[policy, busy] / quiet:.2f}"
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        table.add_row(policy, str(busy), f"{medians[policy, busy]:.0f}", spread, share)
    Console().print(table)


if __name__ == "__main__":
    main()
