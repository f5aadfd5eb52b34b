"""Harbor tasks for tests: ten small ones of editing files and processing text, and others on demand."""

import random
import shlex
from collections.abc import Mapping
from pathlib import Path

NAMES = ("Ann", "Bob", "Cem", "Dai", "Eva", "Finn", "Gus", "Hal")
SPLITS = ("train",) * 6 + ("validation",) * 2 + ("test",) * 2


def write_task(
    folder: Path,
    *,
    instruction: str = "Write ok into /app/out.txt.",
    dockerfile: str = "FROM ubuntu:24.04\nWORKDIR /app\nCOPY . /app/\n",
    files: Mapping[str, str] | None = None,
    solve: str = "echo ok > out.txt\n",
    test: str = 'if [ "$(cat /app/out.txt)" = ok ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt',
    settings: str = "",
) -> Path:
    """Write a task folder. `files`: those beside the Dockerfile."""
    texts = {
        "instruction.md": instruction,
        "task.toml": f'schema_version = "1.4"\n{settings}',
        "environment/Dockerfile": dockerfile,
        "solution/solve.sh": f"#!/bin/bash\n{solve}",
        "tests/test.sh": f"#!/bin/bash\n{test}\n",
        **{f"environment/{name}": text for name, text in (files or {}).items()},
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def compare(command: str, expected: str) -> str:
    """Return a test that pays 1 if a command prints the expected text."""
    return f'if [ "$({command})" = {shlex.quote(expected)} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'


def write_ten_tasks(folder: Path, seed: int = 0) -> Path:
    """Write ten tasks, two of each sort, with six of them for training."""
    rng = random.Random(seed)
    for number in range(10):
        names = rng.sample(NAMES, 5)
        ages = {name: rng.randint(20, 60) for name in names}
        table = "".join(f"{name},{age}\n" for name, age in ages.items())
        old, new = names[:2]
        instruction, solve, test = (
            (f"Replace {old} with {new} in people.csv.", f"sed -i s/{old}/{new}/ people.csv",
             compare("cat /app/people.csv", table.replace(old, new).strip())),
            ("Write the sum of the ages in people.csv into sum.txt.",
             "awk -F, '{s += $2} END {print s}' people.csv > sum.txt",
             compare("cat /app/sum.txt", str(sum(ages.values())))),
            ("Write the names in people.csv into names.txt, sorted.", "cut -d, -f1 people.csv | sort > names.txt",
             compare("cat /app/names.txt", "\n".join(sorted(names)))),
            (f"Move people.csv to /data/{old}/old.csv.", f"mkdir -p /data/{old}\nmv people.csv /data/{old}/old.csv",
             compare(f"cat /data/{old}/old.csv; ls /app", table.strip())),
            ("Write the name of the oldest into oldest.txt.",
             "python3 - <<'EOF' > oldest.txt\nrows = [line.split(',') for line in open('people.csv')]\n"
             "print(max(rows, key=lambda row: int(row[1]))[0])\nEOF",
             compare("cat /app/oldest.txt", max(ages, key=lambda name: ages[name]))),
        )[number % 5]  # fmt: skip
        write_task(
            folder / f"task-{number}",
            instruction=instruction,
            dockerfile="FROM python:3-slim\nWORKDIR /app\nCOPY people.csv ./\n",
            files={"people.csv": table},
            solve=solve,
            test=test,
            settings=f'[metadata]\nsplit = "{SPLITS[number]}"\n[agent]\ntimeout_sec = 99\n[verifier]\ntimeout_sec = 60',
        )
    return folder
