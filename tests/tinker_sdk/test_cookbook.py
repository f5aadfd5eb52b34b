"""Recipes of tinker-cookbook, unmodified, on the training service.

Their data come from local folders: `datasets` and `transformers` prefer a folder of that name to the hub.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tinker_for_tests import KEY, serving_tinker
from turnwise.models.loading.tiny import tiny_tokenizer

PYTHON = Path(__file__).parents[2] / ".venv-tinker" / "bin" / "python"
MODEL = "Qwen/Qwen3-8B-Base"
"""A name that the cookbook knows, for tiny."""


@pytest.fixture(scope="module", autouse=True)
def cookbook(optional_part: Callable[..., NoReturn]) -> None:
    if not PYTHON.exists():
        optional_part("tinker-cookbook is not installed: make test installs it into .venv-tinker")


def write_dataset(folder: Path, rows: list[dict[str, Any]], config: str = "default") -> None:
    """Write a data set with the splits train and test, of the same rows."""
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = "".join(f"  - split: {split}\n    path: rows.jsonl\n" for split in ("train", "test"))
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{splits}---\n")


def run_recipe(folder: Path, name: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a recipe with tiny for two steps and return its metrics."""
    tiny_tokenizer().save_pretrained(folder / MODEL)
    arguments = {"model_name": MODEL, "log_path": folder / "log", "max_steps": 2, **options}
    with serving_tinker(folder / "served", name=MODEL) as client:
        child = subprocess.run(
            (PYTHON, "-m", f"tinker_cookbook.recipes.{name}", *(f"{key}={value}" for key, value in arguments.items())),
            cwd=folder,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            | {"TINKER_BASE_URL": client.url, "TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0"}
            | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert child.returncode == 0, (child.stdout + child.stderr)[-4000:]
    checkpoint = json.loads((folder / "log" / "checkpoints.jsonl").read_text().splitlines()[-1])
    assert checkpoint["state_path"].endswith("/weights/final")
    assert checkpoint["sampler_path"].endswith("/sampler_weights/final")
    return [json.loads(line) for line in (folder / "log" / "metrics.jsonl").read_text().splitlines()]


def test_sl_loop_lowers_the_loss(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "left left"}]
    write_dataset(tmp_path / "HuggingFaceH4" / "no_robots", [{"messages": messages}] * 8)
    options = {"batch_size": 4, "learning_rate": 0.01, "max_length": 64, "lora_rank": 4}
    first, second = run_recipe(tmp_path, "sl_loop", options)
    assert second["train_mean_nll"] < first["train_mean_nll"]


def test_rl_loop_trains(tmp_path: Path) -> None:
    rows = [{"question": f"{number} + 1?", "answer": f"#### {number + 1}"} for number in range(4)]
    write_dataset(tmp_path / "openai" / "gsm8k", rows, config="main")
    metrics = run_recipe(tmp_path, "rl_loop", {"batch_size": 2, "group_size": 4, "max_tokens": 8, "lora_rank": 4})
    assert [row["progress/batch"] for row in metrics] == [0, 1] and all("reward/total" in row for row in metrics)


def test_dpo_prefers_the_chosen_reply(tmp_path: Path) -> None:
    question = "\n\nHuman: Where to?\n\nAssistant:"
    rows = [{"chosen": f"{question} left", "rejected": f"{question} right"}] * 8
    write_dataset(tmp_path / "Anthropic" / "hh-rlhf", rows)
    options = {"batch_size": 4, "learning_rate": 0.01, "lr_schedule": "constant", "dpo_beta": 1.0}
    metrics = run_recipe(tmp_path, "preference.dpo.train", options)
    losses = [row["dpo_loss"] for row in metrics if "dpo_loss" in row]
    assert len(losses) == 2 and losses[1] < losses[0]


def test_on_policy_distillation_trains(tmp_path: Path) -> None:
    write_dataset(tmp_path / "zwhe99" / "DeepMath-103K", [{"question": f"{number} + 1?"} for number in range(4)])
    options = {"teacher_model": MODEL, "groups_per_batch": 2, "group_size": 2, "max_tokens": 6, "lora_rank": 4}
    metrics = run_recipe(tmp_path, "distillation.on_policy_distillation", options | {"learning_rate": 0.01})
    divergences = [row["teacher_kl"] for row in metrics if "teacher_kl" in row]
    assert len(divergences) == 2 and abs(divergences[0]) < 1e-3  # the adapter starts as its teacher
