"""The stages of a run: evaluation, training, evaluation."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.config.load import build
from turnwise.core.errors import LearnerLost
from turnwise.core.task import Task
from turnwise.record.rows import EvaluationRecord, Record, select
from turnwise.run import training_run
from turnwise.run.training_run import TrainingRun
from turnwise.training.checkpoints import State

START = State(step=0, skipped_steps=0)
STEPS = 3


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run, "write_report", lambda path, summary: None)


class StagedRun(TrainingRun):
    """A run whose folder is a list of metrics. Its loop trains in one call and loses the learner at some calls."""

    def __init__(self, losses: Sequence[str]) -> None:
        self.config, self.steps = build({}), STEPS
        self.records: list[Record] = []
        self.folder = SimpleNamespace(  # type: ignore[assignment]
            path=None,
            read_records=lambda: self.records,
            write_summary=lambda summary: None,
            discard_results=lambda: None,
        )
        self.losses, self.calls, self.saved = list(losses), list[tuple[str, int]](), START

    def _do(self, name: str, step: int) -> None:
        self.calls.append((name, step))
        if self.losses and self.losses[0] == name:
            raise LearnerLost(self.losses.pop(0))

    async def evaluate(self, name: str, step: int) -> None:
        self._do(name, step)
        self.records.append(EvaluationRecord(step=step, name=name, metrics={}))

    async def run(self, state: State) -> State:
        self._do("train", state.step)
        self.saved = State(step=STEPS, skipped_steps=0)
        return self.saved

    def recover(self, loss: LearnerLost) -> State:
        return self.saved

    def eval_tasks(self, split: Any) -> list[Task]:
        return []

    method = "staged"

    def advise_finished(self, path: Path) -> str:
        return ""

    def next_command(self, path: Path) -> str:
        return ""

    def build(self, *_: Any) -> Any: ...

    def summarise(self, records: Sequence[Record]) -> dict[str, Any]:
        return {"evaluations": [record.name for record in select(records, EvaluationRecord)]}


@pytest.mark.parametrize(
    ("losses", "calls"),
    [
        (["before"], [("before", 0), ("before", 0), ("train", 0), ("after", 3)]),
        (["train"], [("before", 0), ("train", 0), ("train", 0), ("after", 3)]),
        (["after"], [("before", 0), ("train", 0), ("after", 3), ("after", 3)]),
    ],
)
def test_lost_learner_repeats_the_stage_that_lost_it(losses: list[str], calls: list[tuple[str, int]]) -> None:
    staged = StagedRun(losses)
    summary = asyncio.run(staged._evaluate_and_train(staged, START))
    assert staged.calls == calls
    assert summary == {"finished": True, "evaluations": ["before", "after"]}


def test_event_loop_runs_while_the_learner_restarts() -> None:
    """Engine replicas that were lost with it start in the event loop."""
    staged, replaced = StagedRun(["train"]), threading.Event()
    staged.recover = lambda loss: START if replaced.wait(60) else pytest.fail("blocked")  # type: ignore[method-assign]

    async def run() -> dict[str, Any]:
        asyncio.get_running_loop().call_later(0.01, replaced.set)
        return await staged._evaluate_and_train(staged, START)

    assert asyncio.run(run())["finished"]
