"""Training runs in separate processes with one thread. Finished runs are not repeated."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def train(recipe: str, out: Path, name: str, settings: Sequence[str]) -> Path:
    """Run training and return the run folder, `out/name`. Its output goes to `out/name.log`."""
    folder = out / name
    if not (folder / "summary.json").exists():
        command = [sys.executable, "-m", "turnwise", "train", recipe, *settings]
        options = [f"--record.folder={out}", f"--name={name}", "--system.threads=1"]
        with (out / f"{name}.log").open("w") as log:
            subprocess.run(
                [*command, *options], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
            )
    return folder


def training_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of the training steps."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "rollout/success" in row]


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content
