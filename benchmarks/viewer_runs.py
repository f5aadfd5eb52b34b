"""Response times of the viewer's list of many runs: first request, repeated, with growing runs, and concurrent.

    python benchmarks/viewer_runs.py [--runs 1000] [--steps 200] [--large-mb 100] [--folder FOLDER]

Then the requests of a run's page: of one of these runs, and of one with `--large-mb` of metrics, of which a panel's
curve is read too. Run folders are synthetic: half of the runs are finished, the others were stopped. The server runs in
a separate process and is queried over HTTP. "CPU" is the CPU time of the server, which other load affects less than
wall-clock time.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from turnwise.config.load import build, to_toml
from viewer import Server, encode, metrics_row

FIRST_S, AGAIN_S, PAGE_S = 1.0, 0.2, 0.5
LARGE = "large"
PANEL = "step,rollout/success"
REPEATS, AT_ONCE, GROWN = 9, 8, 10


def make_runs(folder: Path, *, runs: int, steps: int) -> None:
    rng = random.Random(0)
    config = to_toml(build({}, [("train.steps", steps), ("algo.preset", "starpo_s")]))
    rows = [encode(metrics_row(rng, step, 60)) for step in range(1, steps + 1)]
    for number in track(range(runs), "writing the runs", transient=True):
        path = folder / f"run-{number:04d}"
        (path / "trajectories").mkdir(parents=True)
        (path / "config.toml").write_text(config)
        (path / ".lock").write_text("1")
        finished = number % 2 == 0
        (path / "metrics.jsonl").write_bytes(b"".join(rows if finished else rows[: steps // 2]))
        if finished:
            (path / "summary.json").write_text(json.dumps(summary(steps)))


def summary(steps: int) -> dict[str, object]:
    success = {"success_before": 0.2, "success_after": 0.9, "interval": [0.85, 0.94]}
    return {**success, "wall_s": 2.5 * steps, "steps": steps, "episodes": 64 * steps, "tokens": 160 * steps, "seed": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="folder of the runs; existing runs are used again")
    parser.add_argument("--large-mb", type=int, default=100, help="size of the metrics of one more run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "run-0000").exists():
            make_runs(folder, runs=args.runs, steps=args.steps)
        if not (folder / LARGE).exists():
            make_large_run(folder / LARGE, size=args.large_mb << 20)
        report(folder)


def make_large_run(path: Path, *, size: int) -> None:
    path.mkdir()
    (path / "config.toml").write_text(to_toml(build({}, [("env.kind", "frozen_lake")])))
    rng, written, step = random.Random(0), 0, 0
    with (path / "metrics.jsonl").open("wb") as file:
        while written < size:
            step += 1
            written += file.write(encode(metrics_row(rng, step, 60)))
    (path / "summary.json").write_text(json.dumps(summary(step)))


def report(folder: Path) -> None:
    console, server = Console(), Server(folder)
    try:
        table = Table("request", "seconds", "CPU s", "allowed s", title="list of runs")

        def add(label: str, seconds: float, cpu_s: float, allowed: float | None) -> None:
            table.add_row(label, f"{seconds:.3f}", f"{cpu_s:.3f}", "" if allowed is None else f"{allowed}")

        began = server.cpu_s()
        first, answer = server.ask("runs")
        add(f"first, {len(answer['runs'])} runs", first, server.cpu_s() - began, FIRST_S)
        add("again", *measure(server, REPEATS), AGAIN_S)
        began, lists = time.perf_counter(), 0
        while any(run.get("partial") for run in server.ask("runs")[1]["runs"]):
            lists += 1
        console.print(f"all metrics were read after {lists} further requests, {time.perf_counter() - began:.1f} s")
        add("again, all metrics read", *measure(server, REPEATS), AGAIN_S)
        growing = sorted(folder.glob("run-*/metrics.jsonl"))[1 : 2 * GROWN : 2]
        for number, metrics in enumerate(growing):
            with metrics.open("ab") as file:
                file.write(encode(metrics_row(random.Random(number), 1000 + number, 60)))
        add(f"after {len(growing)} runs grew", *measure(server, 1), AGAIN_S)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            before = server.cpu_s()
            times = list(pool.map(lambda _: server.ask("runs")[0], range(AT_ONCE)))
            add(f"slowest of {AT_ONCE} concurrent", max(times), (server.cpu_s() - before) / AT_ONCE, None)
        add_pages(server, add)
        console.print(table)
        console.print(f"on {os.cpu_count()} cores")
    finally:
        server.close()


def add_pages(server: Server, add: Callable[[str, float, float, float | None], None]) -> None:
    """Measure what the page of a run asks for before it is shown, and what it adds afterwards."""
    requests: list[tuple[str, str, dict[str, Any], float | None]] = [
        ("page", "run", {}, PAGE_S),
        ("settings", "config", {}, PAGE_S),
        ("names of metrics", "keys", {}, None),
        ("a curve", "metrics", {"keys": PANEL}, None),
        ("a curve again", "metrics", {"keys": PANEL}, PAGE_S),
        ("explanation", "explain", {}, None),
    ]
    for run in ("run-0000", LARGE):
        for label, name, query, allowed in requests:
            before = server.cpu_s()
            seconds, _ = server.ask(name, run=run, **query)
            add(f"{run}: {label}", seconds, server.cpu_s() - before, allowed)


def measure(server: Server, repeats: int) -> tuple[float, float]:
    """Return the median seconds, and the mean CPU seconds of the server."""
    before = server.cpu_s()
    seconds = statistics.median(server.ask("runs")[0] for _ in range(repeats))
    return seconds, (server.cpu_s() - before) / repeats


if __name__ == "__main__":
    main()
