"""Response times and memory of the viewer's server with a long run.

    python benchmarks/viewer.py [--steps 10000] [--episodes 10] [--keys 60] [--folder FOLDER]

The run is synthetic: steps * episodes small trajectories and one row of metrics per step. The server runs in a separate
process, as `turnwise view` starts it, and is queried over HTTP. "first" is the first request, in wall-clock time and in
CPU time of the server, which other load affects less; "again" is the median of repeated requests. Memory is the
process's size after all requests, and its peak.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich.console import Console
from rich.progress import track
from rich.table import Table

CONFIG = '[env]\nkind = "frozen_lake"\n[model]\nname = "tiny"\n[algo]\nadvantage = "gae"\n[train]\nsteps = {steps}\n'
REPEATS = 9
ALLOWED_S = {"list": 1.0, "trajectory": 0.2}
ALLOWED_MB = 300.0
START = "import sys; from turnwise.cli.view import view; from pathlib import Path; view(Path(sys.argv[1]), port=0)"


def trajectory(rng: random.Random, pool: list[dict[str, Any]], step: int, group: int, member: int) -> dict[str, Any]:
    """Return two short turns, as in a run of frozen_lake."""
    won = rng.random() < step / 20_000
    turns = rng.choices(pool, k=2)
    return {
        "step": step,
        "group": group,
        "member": member,
        "attempt": 0,
        "task": {"env": "frozen_lake", "seed": step * 100 + group, "split": "train", "params": {"size": 4}},
        "status": "succeeded" if won else "failed",
        "reward": 1.0 if won else -0.1 * rng.random(),
        "tokens": sum(len(each["action_ids"]) for each in turns),
        "rewards": {"env": float(won)},
        "timings": {"wall_s": rng.random()},
        "start": turns[1]["picture"],
        "turns": turns,
    }


def turn(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a turn of 24 context tokens and 8 action tokens."""
    action = [rng.randrange(1600) for _ in range(8)]
    return {
        "context": f"turn {number}: P _ _ _\n_ O _ _\n_ _ _ G",
        "context_ids": [rng.randrange(1600) for _ in range(24)],
        "extends": number > 0,
        "action_ids": action,
        **{name: [-rng.random() for _ in action] for name in ("action_logprobs", "advantages", "learner_logprobs")},
        "entropies": [rng.random() for _ in action],
        "loss_mask": [1] * len(action),
        "temperature": 1.0,
        "policy_version": 0,
        "stop": "eos",
        "spans": [["answer", 0, len(action)]],
        "message": {"role": "assistant", "content": rng.choice(["Right", "Down", "Left", "Up"])},
        "reward": 0.0,
        "turn_reward": 0.0,
        "invalid": False,
        "info": {},
        "picture": picture(rng),
    }


def picture(rng: random.Random) -> dict[str, Any]:
    rows = [[rng.choice(["frozen", "hole"]) for _ in range(4)] for _ in range(4)]
    return {"rows": rows, "caption": "", "info": {}}


def metrics_row(rng: random.Random, step: int, keys: int) -> dict[str, Any]:
    success = 1 / (1 + math.exp(-step / 2000))
    row = {"step": step, "rollout/success": success, "rollout/sampled_tokens": 160.0, "time/total_s": 2.5}
    return row | {f"train/metric_{number:02d}": rng.gauss(0.0, 1.0) for number in range(keys - len(row))}


def make_run(folder: Path, *, steps: int, episodes: int, keys: int = 60, show: bool = False) -> None:
    """Write a run folder like that of a training run."""
    rng = random.Random(0)
    pool = [turn(rng, number) for number in range(200)]
    (folder / "trajectories").mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG.format(steps=steps))
    numbers = range(1, steps + 1)
    with (folder / "metrics.jsonl").open("wb") as metrics, (folder / "trajectories/index.jsonl").open("wb") as index:
        for step in track(numbers, "writing the run", transient=True) if show else numbers:
            metrics.write(encode(metrics_row(rng, step, keys)))
            rows = [trajectory(rng, pool, step, member // 5, member % 5) for member in range(episodes)]
            lines = [encode(row) for row in rows]
            (folder / f"trajectories/step_{step:06d}.jsonl").write_bytes(b"".join(lines))
            index.writelines(encode(entry) for entry in index_rows(rows, lines))
    tokens = [{"id": number, "text": f"t{number}", "special": number > 1595} for number in range(1600)]
    (folder / "trajectories/tokens.jsonl").write_bytes(b"".join(map(encode, tokens)))


def index_rows(rows: list[dict[str, Any]], lines: list[bytes]) -> Iterator[dict[str, Any]]:
    offset = 0
    for row, line in zip(rows, lines, strict=True):
        yield {
            **{name: row[name] for name in ("step", "group", "member")},
            "environment": row["task"]["env"],
            "seed": row["task"]["seed"],
            **{name: row[name] for name in ("status", "reward", "tokens")},
            "turns": len(row["turns"]),
            "offset": offset,
            "length": len(line) - 1,
        }
        offset += len(line)


def encode(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


class Server:
    """`turnwise view` in a separate process."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", START, str(folder)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = next(word for word in self._process.stdout.readline().split() if word.startswith("http"))
        self.ask("keys", run="-", tolerant=True)  # wait until the server has started

    def ask(self, name: str, *, tolerant: bool = False, **query: object) -> tuple[float, Any]:
        """Return the seconds until the whole response has arrived, and the response."""
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(f"{self.address}api/{name}?{urlencode(query)}") as answer:
                body = answer.read()
        except urllib.error.HTTPError:
            if tolerant:
                return 0.0, None
            raise
        return time.perf_counter() - began, json.loads(body)

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server, in steps of 10 ms."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> tuple[float, float]:
        """Return its current size and its peak."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        found = dict(line.split(":", 1) for line in text.splitlines())
        return tuple(int(found[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def requests(steps: int, total: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return API requests by label, in the order in which a user of the page causes them."""
    run = {"run": "long"}
    return {
        "list of runs": ("runs", {}),
        "list of trajectories": ("trajectories", run),
        "list, by reward, one status": ("trajectories", {**run, "sort": "-reward", "status": "succeeded"}),
        "list, one step": ("trajectories", {**run, "step": 77}),
        "trajectory, the first": ("trajectory", {**run, "number": 0}),
        "trajectory, the last": ("trajectory", {**run, "number": total - 1}),
        "metrics, three": ("metrics", {**run, "keys": "rollout/success,train/metric_10,train/metric_11"}),
        "metrics, all": ("metrics", run),
        "metrics, new rows": ("metrics", {**run, "after": steps}),
        "search without a match": ("trajectories", {**run, "text": "no such text"}),
        "common tasks with itself": ("common", {"one": "long", "other": "long"}),
    }


def measure(server: Server, name: str, query: Mapping[str, Any]) -> tuple[float, float, float, Any]:
    before = server.cpu_s()
    first, answer = server.ask(name, **query)
    cpu_s = server.cpu_s() - before
    again = statistics.median(server.ask(name, **query)[0] for _ in range(1 if "text" in query else REPEATS))
    return first, cpu_s, again, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--episodes", type=int, default=10, help="episodes per step")
    parser.add_argument("--keys", type=int, default=60, help="metrics per row")
    parser.add_argument("--folder", type=Path, help="folder of the run; an existing run is used again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "long").exists():
            make_run(folder / "long", steps=args.steps, episodes=args.episodes, keys=args.keys, show=True)
        report(folder, args.steps, args.steps * args.episodes)


def report(folder: Path, steps: int, total: int) -> None:
    console, server = Console(), Server(folder)
    try:
        table = Table(
            "request", "first ms", "CPU ms", "again ms", "response kB", "allowed ms", title=f"{total} trajectories"
        )
        for label, (name, query) in requests(steps, total).items():
            first, cpu_s, again, answer = measure(server, name, query)
            allowed = ALLOWED_S.get(label.split()[0].strip(","))
            limit = "" if allowed is None else f"{1000 * allowed:.0f}"
            note = f" ({answer['searched']} of {answer['of']} read)" if "searched" in answer else ""
            size = len(json.dumps(answer)) / 1000
            table.add_row(label + note, *(f"{1000 * each:.0f}" for each in (first, cpu_s, again)), f"{size:.0f}", limit)
        console.print(table)
        now, peak = server.memory_mb()
        console.print(f"memory of the server: {now:.0f} MB, peak {peak:.0f} MB (allowed {ALLOWED_MB:.0f} MB)")
        console.print(f"on {os.cpu_count()} cores")
    finally:
        server.close()


if __name__ == "__main__":
    main()
