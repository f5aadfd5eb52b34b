"""`turnwise sft` and `turnwise train` on Harbor tasks, with the tiny model."""

import sys
from pathlib import Path
from typing import Any

import pytest

from harbor_for_tests import write_task, write_ten_tasks
from runs_for_tests import episodes, quiet, small
from turnwise.cli.main import main
from turnwise.config.schema import Config
from turnwise.run.sft import sft
from turnwise.run.train import train

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


def settings(folder: Path, **others: Any) -> Config:
    params = {"folder": str(folder / "tasks"), "disk_mb": 32, "style": "answer", "max_turns": 2}
    given = {
        "env__kind": "harbor",
        **{f"env__params__{name}": value for name, value in params.items()},
        "model__warmup_steps": 0,
        "rollout__max_tokens": 1500,
        "rollout__max_new_tokens": 256,
        "eval__every": 2,
        "eval__episodes": 1,
        "checkpoint__every": 2,
    }
    return small(folder, **{**given, **others})


def test_training_on_harbor_tasks_starts_from_their_solutions(tmp_path: Path) -> None:
    write_ten_tasks(tmp_path / "tasks")
    sft_settings = {"sft__demos": "solver", "sft__count": 4, "sft__batch": 2, "sft__think": False}
    tuned = sft(settings(tmp_path, record__name="tuned", **sft_settings), console=quiet())
    assert tuned["finished"] and tuned["demonstrations"] == 4
    algorithm = {"algo__advantage": "grpo", "algo__kl_coef": 0.0, "train__steps": 2, "rollout__group_size": 2}
    config = settings(tmp_path, model__name=str(tmp_path / "tuned"), rollout__max_new_tokens=32, **algorithm)
    assert train(config, console=quiet())["finished"]
    played = list(episodes(tmp_path / "run"))
    assert len(played) >= 8 and all(episode["status"] != "dropped" for episode in played)


def test_tasks_that_cannot_run_stop_a_run_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_task(tmp_path / "tasks" / "a", dockerfile="FROM ubuntu\nWORKDIR /app\nRUN cat none")
    assert main(["train", f"harbor:{tmp_path / 'tasks'}", "--dry-run"]) == 2
    error = capsys.readouterr().err.strip()
    assert "a: environment/Dockerfile line 3: RUN cat none failed here: exit code 1, cat: none: No such file" in error
    assert len(error.splitlines()) == 1


def test_envs_check_finds_harbor_tasks_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ten_tasks(tmp_path / "tasks")
    assert main(["envs", "check", f"harbor:{tmp_path / 'tasks'}", "--tasks", "2"]) == 0
    shown = capsys.readouterr().out
    assert "success 100%, 1 per episode" in shown and "successes earn 1 to 1, failures 0 to 0" in shown
