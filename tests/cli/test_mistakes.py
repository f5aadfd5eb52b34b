"""Mistakes of new users end with one line that says what is wrong, where, and what to do."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mistakes_for_tests import MISTAKES, Mistake
from mistakes_in_commands_for_tests import IN_COMMANDS
from mistakes_in_settings_for_tests import IN_SETTINGS, WITHOUT_TORCH
from turnwise.cli.main import main

ALL = {**MISTAKES, **IN_SETTINGS, **IN_COMMANDS}
NO_TORCH = (
    "step returns nothing",
    "reward returns a text",
    "conversations are broken",
    "conversations of a robot",
    "conversations are missing",
    "demonstrations of no run",
    "runs is a file",
    "a folder in a file",
    "a taken folder",
    "results beside others",
    "a section as a text",
    *WITHOUT_TORCH,
    *IN_COMMANDS,
)
"""Reported before torch is imported."""


def write_files(mistake: Mistake, folder: Path) -> None:
    for name, content in mistake.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("name", ALL)
def test_mistake_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake = ALL[name]
    write_files(mistake, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(mistake.typed)) == 2
    *_, last = shown = capsys.readouterr().err.splitlines()
    assert last.startswith("turnwise: ") and "Traceback" not in "".join(shown), shown
    assert all(part in last for part in mistake.says), last
    assert len(last) < 700
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.parametrize("name", NO_TORCH)
def test_mistake_is_reported_without_torch(name: str, tmp_path: Path) -> None:
    write_files(ALL[name], tmp_path)
    code = "import sys; from turnwise.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, *shlex.split(ALL[name].typed)]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        ("watch run", "run/metrics.jsonl"),
        ("view runs --port 0", "runs"),
        ("index texts --to x", "texts"),
        ("index x.txt --to x", "x.txt"),
    ],
)
def test_path_without_permission_is_one_line(
    typed: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may read everything, so the system's answer is replaced."""
    for name in ("run/config.toml", "run/metrics.jsonl", "runs/x", "texts/x.txt", "x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda given, mode: str(given) != path)
    assert main(typed.split()) == 2
    assert capsys.readouterr().err == (
        f"turnwise: {path} cannot be read (Permission denied). Change its permissions, or give another path.\n"
    )
