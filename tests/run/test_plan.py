"""The plan of a run: episodes, time as measured, and memory of a GPU."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from turnwise.cli.main import main
from turnwise.config.load import build, to_toml
from turnwise.config.schema import Config
from turnwise.record.rows import BEFORE, EvaluationRecord
from turnwise.record.run_folder import RunFolder
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.run import plan as planning
from turnwise.run.plan import find_measurement, plan_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configure(*overrides: tuple[str, Any]) -> Config:
    base = [("env.kind", "bandit"), ("rollout.groups", 4), ("rollout.group_size", 4), ("train.steps", 100)]
    return build({}, [*base, ("eval.episodes", 10), *overrides])


def write_run(name: str, seconds: list[float], *overrides: tuple[str, Any]) -> None:
    with RunFolder.create(Path("runs") / name, to_toml(configure(*overrides))) as folder:
        time = {"total_s": 5.0}
        folder.append_metrics(EvaluationRecord(step=0, name=BEFORE, metrics={"episodes": 10.0}, time=time))
        for step, each in enumerate(seconds, start=1):
            metrics = {"rollout/success": 0.5, "time/total_s": each}
            folder.append_metrics(StepRecord.of(step, EpisodeSource.PLAYED, metrics))


def test_plan_counts_episodes_and_evaluations() -> None:
    lines = plan_run(configure(("eval.every", 25))).lines
    assert lines[0] == "100 steps of 16 episodes: 1,600 episodes played, and 6 evaluations of 10."
    assert lines[1] == "Its time is unknown: no run in runs has done the same work."
    limited = plan_run(configure(("train.max_minutes", 3)))
    assert limited.lines[1].endswith("It stops after 3 minutes.")
    assert limited.seconds is None


def test_time_is_that_of_a_run_with_the_same_work() -> None:
    write_run("same", [90.0] * 2 + [2.0] * 20)
    plan = plan_run(configure(("train.steps", 50), ("train.learning_rate", 0.5)))
    assert plan.seconds == 50 * 2.0 + 2 * 10 * 0.5
    assert plan.lines[1] == "About 1:50: 2 s per step, as measured in runs/same."
    doubled = plan_run(configure(("rollout.groups", 8)))
    assert doubled.seconds == 100 * 4.0 + 10.0
    assert doubled.lines[1] == "About 6:50: 4 s per step, as measured in runs/same, which played 16 episodes per step."
    limited = plan_run(configure(("train.max_minutes", 1)))
    assert limited.seconds == 60 + 10


@pytest.mark.parametrize(
    "override",
    [
        ("env.kind", "frozen_lake"),
        ("env.params.low", 0.2),
        ("model.name", "tiny_vlm"),
        ("rollout.max_new_tokens", 99),
        ("context", "turn"),
        ("lora.rank", 4),
        ("train.epochs", 2),
    ],
)
def test_time_of_other_work_says_nothing(override: tuple[str, Any]) -> None:
    write_run("same", [2.0])
    assert find_measurement(configure()) is not None
    assert find_measurement(configure(override)) is None


def test_newest_measured_run_counts_and_broken_ones_do_not(here: Path) -> None:
    write_run("old", [3.0])
    write_run("empty", [])
    (here / "runs/broken").mkdir()
    (here / "runs/broken/config.toml").write_text("= 3")
    measured = find_measurement(configure())
    assert measured is not None
    assert (measured.run, measured.step_s) == ("runs/old", 3.0)
    assert plan_run(configure(("train.steps", 1))).seconds == 3.0 + 10.0


def test_plan_of_a_gpu_lists_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "resolve_device", lambda name: planning.torch.device("cuda", 0))
    monkeypatch.setattr(planning, "device_memory", lambda device: 24 << 30)
    plan = plan_run(configure(("model.name", "smollm2-135m")))
    assert plan.memory_headers[0] == "GiB of"
    assert plan.memory_rows[-1] == ("available", "24.00", "24.00", "")
    assert "135M parameters" in plan.lines[2]


def test_dry_run_prints_the_plan_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    write_run("same", [2.0])
    words = ["train", "bandit", "--rollout.groups", "4", "--rollout.group_size", "4", "--dry-run"]
    assert main(words) == 0
    assert re.search(r"\n# \d+ steps of 16 episodes", capsys.readouterr().out)
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"]["rollout.groups"] == 4
    assert printed["plan"]["lines"][0].startswith(f"{printed['settings']['train.steps']} steps of 16 episodes")
    assert main(["train", "bandit", "--json"]) == 2
    assert "--json has an effect with --dry-run" in capsys.readouterr().err
