"""Very short runs, and comparisons of their results."""

import io
import re
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.record.catalogue import METRICS, Metric
from turnwise.record.run_folder import RunFolder
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix
from turnwise.training.checkpoints import step_folders, step_of

WARMUP_STEPS = 15
STEPS = 3


def environments_of(config: Config) -> EnvironmentMix:
    return build_environment_mix(config.env, config.agent)


def small(folder: Path, **settings: Any) -> Config:
    """Everything that carries over a step is in it: a critic of its own, a reference, evaluations, the best checkpoint.

    Further settings by their dotted name with `__` for `.`.
    """
    given = {
        "env.kind": "bandit",
        "model.warmup_steps": WARMUP_STEPS,
        "rollout.groups": 2,
        "rollout.group_size": 4,
        "rollout.max_new_tokens": 12,
        "rollout.max_tokens": 256,
        "algo.advantage": "gae",
        "algo.kl_coef": 0.1,
        "critic.learning_rate": 1e-3,
        "train.steps": STEPS,
        "train.mini_batch": 4,
        "train.learning_rate": 1e-3,
        "eval.episodes": 8,
        "eval.every": 1,
        "checkpoint.every": 1,
        "record.folder": str(folder),
        "record.name": "run",
        "system.threads": 1,
    }
    given |= {name.replace("__", "."): value for name, value in settings.items()}
    return build({}, list(given.items()), load_code=True)


def rewind(run: Path, folder: Path, step: int) -> Path:
    """Copy a finished run as if it had been killed after its last step with the checkpoint of an earlier step."""
    copy = folder / run.name
    shutil.copytree(run, copy)
    for each in step_folders(copy / "checkpoints"):
        if step_of(each) > step:
            shutil.rmtree(each)
    assert (copy / f"checkpoints/step_{step:06d}").exists()
    (copy / "summary.json").unlink()
    return copy


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def learnt(run: Path, step: int = STEPS) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint: policy, critic and optimizers."""
    folder = run / f"checkpoints/step_{step:06d}"
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "learner.safetensors")}


def find_metric(name: str) -> Metric | None:
    """Return the entry of a metric in the catalogue. Those of stored episodes, `data/`, are as those of played ones."""
    name = re.sub("^data/", "rollout/", name)
    return next((metric for metric in METRICS if re.fullmatch(metric.pattern, name)), None)


def unknown_metrics(run: Path) -> list[str]:
    """Return the recorded metrics that the catalogue lacks."""
    names = {name for row in RunFolder.open(run).read_metrics() for name in row} - {"step", "nonfinite"}
    return sorted(name for name in names if find_metric(name) is None)


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run without times."""
    rows = RunFolder.open(run).read_metrics()
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def episodes(run: Path, *, only_training: bool = False) -> list[dict[str, Any]]:
    """Return the index of a run's trajectories with their messages, without timings and byte offsets."""
    folder, rows = RunFolder.open(run), []
    parts = (None,) if only_training else (None, "before", "validation", "after")
    for entry in (each for name in parts for each in folder.read_index(name)):
        kept = {name: value for name, value in entry.items() if name not in ("offset", "length")}
        turns = folder.read_trajectory(entry)["turns"]
        rows.append({**kept, "said": [(turn["context_ids"], turn["action_ids"]) for turn in turns]})
    return rows
