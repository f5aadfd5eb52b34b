"""The environment that `turnwise envs new` writes works, and so does its test."""

import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec
from turnwise.envs.starter.write import write_starter


def test_what_is_written_loads_and_its_own_test_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["envs", "new", "FindTreasure"]) == 0
    kind = load_spec(f"{tmp_path}/find_treasure.py:FindTreasure")
    assert kind.summary.startswith("Walk to the treasure.")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_find_treasure.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_a_wrong_rule_makes_its_test_fail(tmp_path: Path) -> None:
    file, test = write_starter("Wrong", tmp_path)
    file.write_text(file.read_text().replace('"Right" if self.treasure >', '"Left" if self.treasure >'))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test.name]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_starter("Mine", tmp_path)
    with pytest.raises(UserError, match="exists"):
        write_starter("Mine", tmp_path)


@pytest.mark.parametrize("name", ["", "mine", "1Mine", "My Env", "../Mine", "Mine:X", "True", "None"])
def test_a_name_that_no_class_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot name a class"):
        write_starter(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_is_missing_or_too_much(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "new"]) == 2 and "GuessNumber" in capsys.readouterr().err
    assert main(["envs", "bandit", "sokoban"]) == 2 and "too many" in capsys.readouterr().err
