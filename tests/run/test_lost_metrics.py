"""Resumed runs whose metrics.jsonl was cut or deleted."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runs_for_tests import STEPS, metrics, printed, quiet, rewind, small
from turnwise.run.train import train
from turnwise.training import checkpoints as checkpoints_module

KILLED_AT = 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train(small(folder), console=quiet())
    return folder / "run"


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def remove_step(file: Path) -> None:
    """Remove the rows of step 1 from the middle."""
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if json.loads(line)["step"] != 1))


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (Path.unlink, f"the rows of steps 1 to {KILLED_AT} and {1 + KILLED_AT} of evaluations"),
        (cut_in_half, "the rows of steps "),
        (remove_step, "the rows of steps 1 and 1 of evaluations"),
    ],
)
def test_resume_restores_lost_metrics_from_the_checkpoint(
    whole: Path, tmp_path: Path, damage: Callable[[Path], None], lost: str
) -> None:
    run, console = rewind(whole, tmp_path, KILLED_AT), quiet()
    damage(run / "metrics.jsonl")
    train(small(tmp_path), resume=True, console=console)
    assert metrics(run) == metrics(whole)
    shown = " ".join(printed(console).split())
    assert f"metrics.jsonl lacked {lost}" in shown and f"restored from step_{KILLED_AT:06d}." in shown
    names = [path.name for path in sorted((run / "trajectories").iterdir())]
    assert names == [path.name for path in sorted((whole / "trajectories").iterdir())]


def test_resume_of_whole_metrics_reports_nothing(whole: Path, tmp_path: Path) -> None:
    run, console = rewind(whole, tmp_path, KILLED_AT), quiet()
    train(small(tmp_path), resume=True, console=console)
    assert metrics(run) == metrics(whole)
    assert "metrics.jsonl" not in printed(console)


def test_resume_names_lost_metrics_without_a_copy(whole: Path, tmp_path: Path) -> None:
    """Checkpoints of earlier versions have no copy."""
    run, console = rewind(whole, tmp_path, KILLED_AT), quiet()
    checkpoint = run / f"checkpoints/step_{KILLED_AT:06d}"
    recorded = json.loads((checkpoint / "state.json").read_text())
    del recorded["files"]["metrics.jsonl"], recorded["digest"]
    recorded["digest"] = checkpoints_module._digest_of(recorded)
    (checkpoint / "state.json").write_text(json.dumps(recorded))
    (checkpoint / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").unlink()
    summary = train(small(tmp_path), resume=True, console=console)
    shown = " ".join(printed(console).split())
    assert f"metrics.jsonl lacks the rows of steps 1 to {KILLED_AT}. step_{KILLED_AT:06d} has no copy" in shown
    assert summary["finished"] and summary["steps"] == STEPS and summary["success_before"] is None
    rows = [row for row in metrics(run) if row["step"] == STEPS]
    assert rows == [row for row in metrics(whole) if row["step"] == STEPS]
    assert not [row for row in metrics(run) if row.get("eval/name") == "before"], "trained weights are not the first"
