"""A run records its code, and a resume reports what has changed."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from runs_for_tests import printed, quiet
from turnwise.config import version as core_version
from turnwise.config.load import build, to_toml
from turnwise.core.errors import UserError
from turnwise.record import provenance
from turnwise.record.provenance import describe_changes, write_provenance
from turnwise.run.configure import configure
from turnwise.run.setting_paths import source_files
from turnwise.run.train import train

ENVIRONMENT = """\
import turnwise as tw

class Quiz(tw.TextEnv):
    "Say 1."
    max_turns = 1
    def reset(self, rng): return "Say 1."
    def step(self, action): return tw.won("Right.") if action == "1" else tw.lost("Wrong.")
"""
REWARD = "def brief(trajectory):\n    return 1.0 / (1 + len(trajectory.turns))\n"
SETTINGS = {
    "model.warmup_steps": 1,
    "rollout.groups": 1,
    "rollout.group_size": 2,
    "rollout.max_new_tokens": 4,
    "train.mini_batch": 2,
    "train.steps": 1,
    "eval.episodes": 1,
    "system.threads": 1,
    "record.name": "run",
}


def test_resume_from_another_directory_reports_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/quiz.py").write_text(ENVIRONMENT)
    (tmp_path / "code/extra.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path / "code")
    given = [*SETTINGS.items(), ("reward.functions", ("extra.py:brief",)), ("train.max_minutes", 1e-9)]
    train(configure("quiz.py:Quiz", overrides=[*given, ("record.folder", str(tmp_path))]), console=quiet())
    run, console = tmp_path / "run", quiet()
    monkeypatch.chdir(tmp_path)
    later = [("train.max_minutes", 1e-9)]
    train(configure(resume="run", overrides=later), resume=True, console=console)
    assert "note:" not in printed(console)
    (tmp_path / "code/extra.py").write_text(REWARD + "# changed\n")
    train(configure(resume="run", overrides=later), resume=True, console=console)
    (note,) = [line for line in printed(console).splitlines() if line.startswith("note:")]
    assert "extra.py has changed" in note and "quiz.py" not in note
    assert "turnwise" not in note.partition("differently")[2]
    record = json.loads((run / "provenance.json").read_text())
    assert record["turnwise"] == provenance.installed_version()
    copies = {Path(path).name: run / about["copy"] for path, about in record["files"].items()}
    assert copies["extra.py"].read_text() == REWARD and copies["quiz.py"].read_text() == ENVIRONMENT


@pytest.mark.parametrize("file", ["quiz.py", "extra.py"])
def test_resume_without_its_code_names_the_copy(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quiz.py").write_text(ENVIRONMENT)
    (tmp_path / "extra.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    given = [("reward.functions", ("extra.py:brief",))]
    config = configure("quiz.py:Quiz", overrides=given)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(to_toml(config), encoding="utf-8")
    write_provenance(tmp_path / "run", source_files(config))
    assert configure(resume="run").env.kind == f"{tmp_path}/quiz.py:Quiz"
    (tmp_path / file).unlink()
    with pytest.raises(UserError) as error:
        configure(resume="run")
    (copy,) = Path("run/sources").glob(f"*-{file}")
    assert str(error.value) == f"{tmp_path / file} is missing, and run needs it. Restore it from the copy {copy}."
    assert f"{file} is missing (original: run/sources/" in (describe_changes(Path("run")) or "")


def test_another_version_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_provenance(tmp_path, [])
    assert describe_changes(tmp_path) is None
    monkeypatch.setattr(provenance, "installed_version", lambda: "99.0")
    changed = describe_changes(tmp_path)
    assert changed is not None and "and is 99.0" in changed and "\n" not in changed


def test_missing_and_damaged_records(tmp_path: Path) -> None:
    assert describe_changes(tmp_path) is None, "a run of an earlier version"
    (tmp_path / "provenance.json").write_text("{")
    with pytest.raises(UserError, match=r"Cannot read .*provenance\.json"):
        describe_changes(tmp_path)


def test_deleted_data_file_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("{}\n")
    write_provenance(tmp_path, [data])
    assert not (tmp_path / "sources").exists(), "data may be large: only its digest is kept"
    data.unlink()
    assert "rows.jsonl is missing" in (describe_changes(tmp_path) or "")


def test_built_in_environments_name_no_files() -> None:
    assert source_files(configure("frozen_lake")) == []


def test_text_too_long_for_a_path_names_no_file() -> None:
    assert source_files(build({"env": {"params": {"note": f"see {'x' * 300}.csv"}}})) == []


def test_version_is_unknown_where_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(core_version, "version", refuse)
    assert core_version.installed_version() == "unknown"
