"""A run that goes back at an alarm, whole and stopped in between: it ends the same, bit by bit."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import learnt, metrics, printed, quiet, small
from turnwise.algos.alarms import Alarm, AlarmSettings, AlarmState
from turnwise.config.schema import Config
from turnwise.files.disk import remove_folder
from turnwise.run.train import train
from turnwise.training import checkpoints, diagnostics, loop
from turnwise.training.checkpoints import read_state
from turnwise.training.update import Update, update

STEPS = 8
ALARMS = (2, 5, 7)
"""The first before there is a regular checkpoint."""
MAX_GRAD_NORM = 0.75
SKIPPED = 4
"""The step whose gradient is not finite, and is skipped."""


class Killed(BaseException):
    """Not caught anywhere, like SIGKILL."""


def settings(folder: Path) -> Config:
    return small(
        folder,
        train__steps=STEPS,
        eval__every=0,
        checkpoint__every=2,
        train__max_grad_norm=MAX_GRAD_NORM,
        diagnose__answer="roll_back",
        rollout__max_new_tokens=6,
        eval__episodes=2,
    )


def alarm_at(*steps: int) -> Callable[..., AlarmState]:
    def check_alarms(rows: Any, active: frozenset[str], bounds: AlarmSettings) -> AlarmState:
        step = rows[-1].step
        raised = (Alarm(kind="test", step=step, message=f"at step {step}"),) if step in steps else ()
        return AlarmState(raised=raised, active=frozenset())

    return check_alarms


def alarmed(rows: Any, active: frozenset[str], bounds: AlarmSettings) -> AlarmState:
    assert bounds.max_grad_norm == MAX_GRAD_NORM
    return alarm_at(*ALARMS)(rows, active, bounds)


def kill_at(path: Path, name: str) -> None:
    if path.name == name:
        raise Killed
    remove_folder(path)


def updating(stop_at: int | None, stop: Callable[[], None]) -> Callable[..., Update]:
    """One step's gradient is not finite; `stop` is called in the update of step `stop_at`."""

    def changed(learner: Any, estimated: Any, given: Any, step: int, *others: Any) -> Update:
        if step + 1 == stop_at:
            stop()
        if step + 1 == SKIPPED:
            weight = next(iter(learner.model.parameters()))
            weight.grad = torch.full_like(weight, float("nan"))
        return update(learner, estimated, given, step, *others)

    return changed


def run(folder: Path, patch: pytest.MonkeyPatch, stops: list[tuple[int, str]]) -> str:
    """Stopped in the updates of these steps, each time resumed."""
    console = quiet()

    def stop(how: str) -> None:
        if how == "killed":
            raise Killed
        signal.raise_signal(signal.SIGINT)

    patch.setattr(diagnostics, "check_alarms", alarmed)
    for resume, (at, how) in enumerate(stops):
        patch.setattr(loop, "update", updating(at, lambda how=how: stop(how)))
        with pytest.raises((Killed, KeyboardInterrupt)):
            train(settings(folder), resume=bool(resume), console=console)
    patch.setattr(loop, "update", updating(None, lambda: None))
    train(settings(folder), resume=bool(stops), console=console)
    return printed(console)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        output = run(folder, patch, [])
    assert output.count("alarm: at step") == 3 and output.count("No checkpoint to roll back to yet") == 1
    assert output.count("Rolled back to step ") == 2
    assert "learning rate is now multiplied by 0.5" in output and "learning rate is now multiplied by 0.25" in output
    return folder / "run"


def test_rollback_restores_weights_and_lowers_the_learning_rate(plain: Path) -> None:
    rows = {row["step"]: row for row in metrics(plain) if "rollout/episodes" in row}
    assert sorted(rows) == list(range(1, STEPS + 1)), "what was rolled back stays in the metrics"
    assert [rows[step]["train/skipped_steps"] > 0 for step in rows] == [step >= SKIPPED for step in rows]
    state = read_state(plain / f"checkpoints/step_{STEPS:06d}")
    assert state.parts["alarms"] == {"rate_scale": 0.25, "rollbacks": 2, "watched_from": 7}


def test_kill_before_old_checkpoints_are_deleted_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before step 1's is deleted, which step 3 would go back to, and before the last deletion of the run."""
    few = {"train__steps": 3, "diagnose__answer": "roll_back", "eval__every": 0, "checkpoint__keep_last": 1}
    configs = {name: small(tmp_path / name, **few, eval__episodes=1) for name in ("plain", "killed")}
    monkeypatch.setattr(diagnostics, "check_alarms", alarm_at(3))
    train(configs["plain"], console=quiet())
    for resume, name in enumerate(("step_000001", "step_000002")):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(checkpoints, "remove_folder", lambda path, name=name: kill_at(path, name))
            train(configs["killed"], resume=bool(resume), console=quiet())
    train(configs["killed"], resume=True, console=quiet())
    ours, plain = tmp_path / "killed/run", tmp_path / "plain/run"
    assert metrics(ours) == metrics(plain)
    mine, other = learnt(ours), learnt(plain)
    assert all(torch.equal(mine[name], other[name]) for name in other)
    assert [[each.name for each in (run / "checkpoints").iterdir()] for run in (ours, plain)] == [["step_000003"]] * 2


MIXED = "killed at first and in each rollback, Ctrl-C in between"
STOPS: dict[str, list[tuple[int, str]]] = {
    MIXED: [(2, "killed"), (3, "ctrl-c"), (5, "killed"), (6, "ctrl-c"), (7, "killed")],
    "killed before its first checkpoint, Ctrl-C after the rollback": [(2, "killed"), (6, "ctrl-c"), (8, "killed")],
    "Ctrl-C before any checkpoint and between two, killed in the rollback": [
        (1, "ctrl-c"),
        (3, "ctrl-c"),
        (5, "killed"),
        (7, "killed"),
    ],
    "killed before its first checkpoint, and after the rollback": [(2, "killed"), (6, "killed")],
    "killed in the rollback": [(5, "killed")],
    "Ctrl-C in the rollback": [(5, "ctrl-c")],
}


@pytest.mark.parametrize(
    "name", [MIXED, *(pytest.param(name, marks=pytest.mark.soak) for name in STOPS if name != MIXED)]
)
def test_resumed_run_rolls_back_with_the_same_bits(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run(tmp_path, monkeypatch, STOPS[name])
    ours = tmp_path / "run"
    assert metrics(ours) == metrics(plain)
    mine, other = (learnt(each, STEPS) for each in (ours, plain))
    assert all(torch.equal(mine[name], other[name]) for name in other) and mine.keys() == other.keys()
    last = f"checkpoints/step_{STEPS:06d}"
    assert read_state(ours / last) == read_state(plain / last)
    assert [each.name for each in sorted((ours / "checkpoints").iterdir())] == [
        each.name for each in sorted((plain / "checkpoints").iterdir())
    ]
