"""One training run in a process of its own, on one thread; a finished one is not run again."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def train(recipe: str, out: Path, name: str, settings: Sequence[str]) -> Path:
    """The run's folder, `out/name`; what it prints is in `out/name.log`."""
    folder = out / name
    if not (folder / "summary.json").exists():
        command = [sys.executable, "-m", "turnwise", "train", recipe, *settings]
        own = [f"--record.folder={out}", f"--name={name}", "--system.threads=1"]
        with (out / f"{name}.log").open("w") as log:
            subprocess.run(
                [*command, *own], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
            )
    return folder


def training_rows(folder: Path) -> list[dict[str, Any]]:
    """The metrics of the training steps."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "rollout/success" in row]


def summary(folder: Path) -> dict[str, Any]:
    """What the run came to."""
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found
