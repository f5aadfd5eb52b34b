"""Runs that an older version made: `tests/data/older_run` has two steps on the bandit, without its weights."""

import json
import shutil
from pathlib import Path

import pytest

import turnwise as tw
from runs_for_tests import quiet, rewind, small, unknown_metrics
from turnwise.core.errors import UserError
from turnwise.record.rows import read_records, select
from turnwise.record.steps import StepRecord
from turnwise.report.html_report import write_report
from turnwise.report.run_report import run_context
from turnwise.run.train import train
from turnwise.training import checkpoints

OLDER = Path(__file__).parents[1] / "data/older_run"


def test_older_run_has_a_report(tmp_path: Path) -> None:
    run = tmp_path / "older_run"
    shutil.copytree(OLDER, run)
    numbers = dict(run_context(run)["numbers"])
    assert numbers["steps"] == "2" and numbers["state"] == "finished" and numbers["episodes"] == "4"
    assert "older_run" in write_report(run).read_text()


def test_older_run_is_read_by_the_api() -> None:
    run = tw.load_run(OLDER)
    assert unknown_metrics(OLDER) == []
    assert run.finished and [record.step for record in select(read_records(run.metrics()), StepRecord)] == [1, 2]


def as_older(checkpoint: Path) -> None:
    """Write the state of a checkpoint as the older version did."""
    state = json.loads((OLDER / "state.json").read_text())
    ours = json.loads((checkpoint / "state.json").read_text())
    del state["digest"]
    state |= {"step": ours["step"], "files": ours["files"]}
    (checkpoint / "state.json").write_text(json.dumps({**state, "digest": checkpoints._digest_of(state)}))


def test_older_run_is_evaluated_and_not_resumed(tmp_path: Path) -> None:
    config = small(tmp_path / "new", train__steps=2, eval__every=0, eval__episodes=2)
    train(config, console=quiet())
    run = rewind(tmp_path / "new/run", tmp_path, step=1)
    as_older(run / "checkpoints/step_000001")
    settings = small(tmp_path, train__steps=2, eval__every=0, eval__episodes=2)
    further = rf"start another run from its settings and its model: `turnwise train --from {run} --model\.name {run}`$"
    with pytest.raises(UserError, match=rf"^{run} was made by an older version of turnwise\. .*{further}"):
        train(settings, resume=True, console=quiet())
    assert 0 <= tw.evaluate(run, episodes=2, quiet=True).success <= 1
