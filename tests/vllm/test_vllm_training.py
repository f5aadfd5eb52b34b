"""A short training run that samples with vLLM."""

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import quiet
from turnwise.models.loading import tiny
from turnwise.record.run_folder import RunFolder
from turnwise.run.configure import configure
from turnwise.run.train import train
from vllm_engines_for_tests import wide_config

SETTINGS = {
    "engine": "vllm",
    "model.warmup_steps": 15,
    "rollout.groups": 4,
    "rollout.group_size": 4,
    "rollout.max_tokens": 512,
    "train.steps": 3,
    "train.mini_batch": 8,
    "train.learning_rate": 1e-3,
    "eval.episodes": 8,
    "system.threads": 1,
}


@pytest.fixture(autouse=True)
def heads_for_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "tiny_config", wide_config)


def run(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Train on FrozenLake and return the metrics of the training steps."""
    given = SETTINGS | {"record.folder": str(folder), "record.name": "run"}
    given |= {name.replace("__", "."): value for name, value in settings.items()}
    config = configure("frozen_lake", overrides=list(given.items()))
    assert (config.algo.correction, config.algo.old_logprobs) == ("truncated", "learner")
    assert train(config, console=quiet())["finished"]
    return [row for row in RunFolder.open(folder / "run").read_metrics() if "rollout/episodes" in row]


def test_training_agrees_with_the_learner_in_every_step(tmp_path: Path) -> None:
    rows = run(tmp_path)
    assert len(rows) == 3
    assert all(row["train/mismatch"] < 1e-4 for row in rows), [row["train/mismatch"] for row in rows]
    assert any(row["train/grad_norm"] > 0 for row in rows), "the weights changed in between"
    assert all(row["rollout/episodes"] == 16 for row in rows)
    end = time.monotonic() + 120
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.1)
    assert not multiprocessing.active_children(), "vLLM ends with the run"


def test_training_publishes_adapters(tmp_path: Path) -> None:
    rows = run(tmp_path, lora__rank=4, train__steps=2)
    assert all(row["train/mismatch"] < 1e-4 for row in rows), [row["train/mismatch"] for row in rows]
    assert any(row["train/grad_norm"] > 0 for row in rows)
