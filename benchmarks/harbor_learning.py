"""Learning to use a shell: SFT on solve.sh, then reinforcement learning, on generated Harbor tasks in the sandbox.

    python benchmarks/harbor_learning.py --out runs/harbor [--model smollm2-135m] [--count 160] [--steps 30] [-- ...]
    python benchmarks/harbor_learning.py --out runs/harbor --small       # tiny, a minute on a CPU: shows that it runs

The tasks are edits of files and small questions about tables. Held-out tasks have other tables, names and files. The
tests of a task decide its reward. Every phase is a process; finished phases are not repeated. The machine needs user
namespaces, which is checked first.
"""

import argparse
import asyncio
import json
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from turnwise.sandbox.files import Image
from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.shell import open_shell, shell_limits
from turnwise.sandbox.types import SandboxUnavailable

NAMES = (
    "Ann",
    "Bob",
    "Cem",
    "Dai",
    "Eva",
    "Finn",
    "Gus",
    "Hal",
    "Ida",
    "Jon",
    "Kim",
    "Lea",
    "Max",
    "Nia",
    "Oto",
    "Pam",
)
FILES = ("people", "staff", "team", "guests", "members", "players", "crew", "pupils")
OUTPUTS = ("result", "answer", "out", "report", "found", "list")
FOLDERS = ("data", "old", "archive", "backup", "store", "keep")
SPLIT_ENDS = {"train": 0.7, "validation": 0.8, "test": 1.0}
"""Split -> share of the tasks at which it ends."""
COMMON = {
    "env.params.style": "answer",
    "env.params.max_turns": 4,
    "env.params.max_tool_calls": 3,
    "env.params.memory_mb": 512,
    "env.params.disk_mb": 16,
    "rollout.max_new_tokens": 96,
    "rollout.max_tokens": 1024,
}
REINFORCEMENT = {
    "rollout.groups": 16,
    "rollout.group_size": 8,
    "rollout.in_flight": 128,
    "train.mini_batch": 64,
    "train.learning_rate": 1e-5,
    "train.warmup_steps": 3,
    "algo.advantage": "grpo",
    "algo.loss.clip_high": 0.28,
    "algo.filter": "top_p",
    "eval.every": 0,
}
SMALL = {"rollout.groups": 2, "rollout.group_size": 2, "train.mini_batch": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m", help="name or folder of the model")
    parser.add_argument("--tasks", type=int, default=640, help="generated tasks, a fifth of them held out")
    parser.add_argument("--count", type=int, default=160, help="demonstrations")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the demonstrations")
    parser.add_argument("--steps", type=int, default=30, help="steps of reinforcement learning")
    parser.add_argument("--max-minutes", type=float, default=4.0, help="limit of each training phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="tiny, few tasks and steps")
    parser.add_argument("settings", nargs="*", help="--NAME=VALUE, settings of both phases, after --")
    args = parser.parse_args()
    if args.small:
        args.model, args.tasks, args.count, args.epochs, args.steps = "tiny", 30, 8, 1, 2
    check_sandbox()
    args.out.mkdir(parents=True, exist_ok=True)
    tasks = args.out.resolve() / "tasks"
    if not tasks.exists():
        write_tasks(tasks, args.tasks, args.seed)
    Console(width=120).print(table_of(run_phases(args, tasks)))


def check_sandbox() -> None:
    """Run one command in the sandbox, or exit at once with the reason and how to fix it."""
    limits = shell_limits(memory_mb=512, disk_mb=16)

    async def try_command() -> str:
        async with await Sandbox.start(limits, packages=(), own_root=True) as box:
            shell = await open_shell(box.session(), Image(), limits)
            return (await shell.run("echo works", timeout_s=20.0)).output

    try:
        output = asyncio.run(try_command())
    except SandboxUnavailable as error:
        sys.exit(f"harbor_learning: {error}")
    Console().print(f"sandbox: {output.strip()}")


def run_phases(args: argparse.Namespace, tasks: Path) -> dict[str, Any]:
    """Run SFT and reinforcement learning and return their summaries, with the seconds that each took."""
    held_out = len(list(tasks.glob("test-*")))
    common = {**COMMON, "eval.episodes": held_out, "seed": args.seed, "train.max_minutes": args.max_minutes}
    sft = {"model.name": args.model, "sft.count": args.count, "sft.epochs": args.epochs, "sft.think": "false"}
    sft |= {"model.warmup_steps": 2} if args.small else {}
    learn = {**REINFORCEMENT, "model.name": args.out / "sft", "train.steps": args.steps, "checkpoint.every": args.steps}
    learn |= SMALL if args.small else {}
    recipe = f"harbor:{tasks}"
    return {
        "SFT": run_phase(args, "sft", ["sft", recipe], common | sft),
        "RL": run_phase(args, "rl", ["train", recipe], common | learn),
    }


def run_phase(args: argparse.Namespace, name: str, command: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    folder = args.out / name
    if not (folder / "summary.json").exists():
        given = dict(setting.removeprefix("--").split("=", 1) for setting in args.settings)
        chosen = settings | given | {"record.folder": args.out, "name": name}
        words = [*command, *(f"--{key}={value}" for key, value in chosen.items())]
        Console(soft_wrap=True, highlight=False).print(f"{name}: turnwise {shlex.join(words)}")
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "turnwise", *words], check=True)
        (args.out / f"{name}.seconds").write_text(f"{time.perf_counter() - began:.0f}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary | {"seconds": float((args.out / f"{name}.seconds").read_text())}


def table_of(phases: dict[str, Any]) -> Table:
    table = Table(title="success on held-out tasks, with the 95 % interval")
    for column in ("phase", "before", "after", "interval", "seconds"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for name, summary in phases.items():
        table.add_row(
            name,
            percent(summary["success_before"]),
            percent(summary["success_after"]),
            " to ".join(percent(bound) for bound in summary["interval"]),
            f"{summary['seconds']:.0f}",
        )
    return table


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def write_tasks(folder: Path, count: int, seed: int) -> None:
    """Write `count` tasks, all different, into the splits."""
    rng, seen = random.Random(seed), set[tuple[str, str]]()
    while len(seen) < count:
        table = make_table(rng)
        instruction, command, check = rng.choice(KINDS)(rng, table)
        if (instruction, table["text"]) in seen:
            continue
        split = next(name for name, end in SPLIT_ENDS.items() if len(seen) < end * count)
        seen.add((instruction, table["text"]))
        write_task(folder / f"{split}-{len(seen):04}", split, table, (instruction, command, check))


def make_table(rng: random.Random) -> dict[str, Any]:
    rows = [(name, rng.randint(10, 99)) for name in rng.sample(NAMES, rng.randint(4, 6))]
    text = "".join(f"{name},{number}\n" for name, number in rows)
    return {"file": f"{rng.choice(FILES)}.csv", "rows": rows, "text": text, "out": f"{rng.choice(OUTPUTS)}.txt"}


Kind = tuple[str, str, str]
"""Instruction, command that solves it, and the condition of the tests."""


def replace_name(rng: random.Random, table: dict[str, Any]) -> Kind:
    old, new = rng.choice(table["rows"])[0], rng.choice(NAMES)
    expected = table["text"].replace(old, new)
    return (
        f"Replace {old} with {new} in {table['file']}.",
        f"sed -i s/{old}/{new}/ {table['file']}",
        equals(table["file"], expected),
    )


def add_up(rng: random.Random, table: dict[str, Any]) -> Kind:
    return (
        f"Write the sum of the numbers in {table['file']} into {table['out']}.",
        f"awk -F, '{{s += $2}} END {{print s}}' {table['file']} > {table['out']}",
        equals(table["out"], f"{sum(number for _, number in table['rows'])}\n"),
    )


def sort_names(rng: random.Random, table: dict[str, Any]) -> Kind:
    return (
        f"Write the names in {table['file']} into {table['out']}, sorted.",
        f"cut -d, -f1 {table['file']} | sort > {table['out']}",
        equals(table["out"], "".join(f"{name}\n" for name in sorted(name for name, _ in table["rows"]))),
    )


def move_file(rng: random.Random, table: dict[str, Any]) -> Kind:
    target = f"{rng.choice(FOLDERS)}/{rng.choice(OUTPUTS)}.csv"
    return (
        f"Move {table['file']} to {target}.",
        f"mkdir -p {target.partition('/')[0]}\nmv {table['file']} {target}",
        f"{equals(target, table['text'])} && [ ! -e /app/{table['file']} ]",
    )


def take_lines(rng: random.Random, table: dict[str, Any]) -> Kind:
    end, count = rng.choice(("first", "last")), rng.randint(1, 3)
    lines = table["text"].splitlines(keepends=True)
    kept = lines[:count] if end == "first" else lines[-count:]
    return (
        f"Write the {end} {count} lines of {table['file']} into {table['out']}.",
        f"{'head' if end == 'first' else 'tail'} -n {count} {table['file']} > {table['out']}",
        equals(table["out"], "".join(kept)),
    )


def select_rows(rng: random.Random, table: dict[str, Any]) -> Kind:
    bound = rng.randint(20, 80)
    return (
        f"Write the lines of {table['file']} with a number above {bound} into {table['out']}.",
        f"awk -F, '$2 > {bound}' {table['file']} > {table['out']}",
        equals(table["out"], "".join(f"{name},{number}\n" for name, number in table["rows"] if number > bound)),
    )


def look_up(rng: random.Random, table: dict[str, Any]) -> Kind:
    name, number = rng.choice(table["rows"])
    return (
        f"Write the number of {name} in {table['file']} into {table['out']}.",
        f"grep ^{name}, {table['file']} | cut -d, -f2 > {table['out']}",
        equals(table["out"], f"{number}\n"),
    )


def count_lines(rng: random.Random, table: dict[str, Any]) -> Kind:
    return (
        f"Write how many lines {table['file']} has into {table['out']}.",
        f"wc -l < {table['file']} > {table['out']}",
        equals(table["out"], f"{len(table['rows'])}\n"),
    )


KINDS = (replace_name, add_up, sort_names, move_file, take_lines, select_rows, look_up, count_lines)


def equals(file: str, expected: str) -> str:
    """Return a condition of bash: the file has this text."""
    return f'[ "$(cat /app/{file} 2> /dev/null; echo .)" = {shlex.quote(expected + ".")} ]'


def write_task(folder: Path, split: str, table: dict[str, Any], kind: Kind) -> None:
    instruction, command, condition = kind
    test = f"if {condition}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
    texts = {
        "instruction.md": instruction,
        "task.toml": f'schema_version = "1.4"\n[metadata]\nsplit = "{split}"\n[verifier]\ntimeout_sec = 60\n',
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY *.csv ./\n",
        f"environment/{table['file']}": table["text"],
        "solution/solve.sh": f"#!/bin/bash\n{command}\n",
        "tests/test.sh": f"#!/bin/bash\n{test}\n",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
