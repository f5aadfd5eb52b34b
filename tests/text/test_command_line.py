"""Printed commands work as typed, with and without an activated environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.text.command_line import spell_command


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment's bin folder with python and turnwise, in the working directory and not on the PATH."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "turnwise").write_text("#!/bin/sh\necho here\n")
    (folder / "turnwise").chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr(sys, "argv", ["script.py"])
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return folder


def test_spell_command_is_short_in_an_activated_environment(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bin_folder))
    assert spell_command("eval", Path("runs/a b"), "--episodes", 5) == "turnwise eval 'runs/a b' --episodes 5"


@pytest.mark.parametrize("started", ["script.py", ".venv/bin/turnwise", "pkg/turnwise/__main__.py"])
def test_spell_command_uses_the_path_otherwise(bin_folder: Path, monkeypatch: pytest.MonkeyPatch, started: str) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    command = spell_command("view")
    assert command == ".venv/bin/turnwise view"
    assert subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout == "here\n"


def test_spell_command_is_absolute_outside_the_project(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert spell_command("view") == f"{bin_folder}/turnwise view"


def test_spell_command_does_not_name_another_installation(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "turnwise").write_text("#!/bin/sh\n")
    (other / "turnwise").chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    assert spell_command("view") == ".venv/bin/turnwise view"


def test_spell_command_falls_back_to_the_module(bin_folder: Path) -> None:
    (bin_folder / "turnwise").unlink()
    assert spell_command("view") == f"{bin_folder}/python -m turnwise view"
