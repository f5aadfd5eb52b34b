"""Errors and last lines print the command that continues a run."""

from pathlib import Path
from typing import Any

import pytest

from turnwise.config.load import build, to_toml
from turnwise.core.errors import UserError
from turnwise.record.resume_command import advise_resume, spell_resume
from turnwise.record.run_folder import RunFolder


def write_run(path: Path, settings: dict[str, Any]) -> Path:
    RunFolder.create(path, to_toml(build(settings))).close()
    return path


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({}, "turnwise train --resume {run}"),
        ({"sft": {"demos": "solver"}}, "turnwise sft --resume {run}"),
        ({"agent": {"command": "python3 agent.py", "tasks": "tasks.jsonl"}}, "turnwise train --resume {run}"),
        ({"env": {"kind": "agent"}}, 'tw.Trainer(resume="{run}")'),
    ],
)
def test_spell_resume_knows_what_started_the_run(tmp_path: Path, settings: dict[str, Any], command: str) -> None:
    run = write_run(tmp_path / "run", settings)
    assert spell_resume(run).endswith(command.format(run=run))


def test_advise_resume_mentions_checkpoints_only_if_there_are_any(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {})
    assert advise_resume(run).startswith("start again from the beginning, as there is no checkpoint yet: `turnwise")
    (run / "checkpoints/step_000002").mkdir()
    assert advise_resume(run) == f"continue from the last checkpoint: `{spell_resume(run)}`"


def test_name_of_another_run_is_refused_with_its_command(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"sft": {"demos": "solver"}})
    with pytest.raises(UserError, match=r"already contains a run\. Continue it with `turnwise sft --resume .*run`"):
        RunFolder.create(run, "")
    (run / "summary.json").write_text("{}")
    with pytest.raises(UserError, match=r"run already contains a finished run\. Choose another record\.name\."):
        RunFolder.create(run, "")
