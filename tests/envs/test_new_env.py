"""`turnwise envs new`: the starter environment works and passes its own test."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec
from turnwise.envs.starter.write import write_starter

PLAIN = """
import turnwise as tw

class Plain(tw.TextEnv):
    action_names = ("on", "off")
    def reset(self, rng):
        return "?"
    def step(self, action):
        return tw.won()
"""


def test_starter_loads_and_passes_its_own_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["envs", "new", "GuessNumber"]) == 0
    kind = load_spec(f"{tmp_path}/guess_number.py:GuessNumber")
    assert kind.summary.startswith("Guess number: ")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_guess_number.py"]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # their imports take a second
    ran = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_starter_test_fails_on_a_wrong_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, test = write_starter("Wrong", tmp_path)
    file.write_text(file.read_text().replace("if guess < self.secret:", "if guess > self.secret:"))
    monkeypatch.syspath_prepend(tmp_path)
    written = runpy.run_path(str(test))
    with pytest.raises(AssertionError):
        for seed in range(50):
            written["test_solver_succeeds_within_the_limits"](seed)


def test_starter_test_skips_methods_that_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, test = write_starter("Plain", tmp_path)
    file.write_text(PLAIN)
    monkeypatch.syspath_prepend(tmp_path)
    written = runpy.run_path(str(test))
    skipped = [
        lambda: written["test_solver_succeeds_within_the_limits"](0),
        written["test_equal_seeds_give_equal_tasks"],
        lambda: written["test_illegal_actions_raise_value_error_and_change_nothing"]("nonsense"),
    ]
    for each in skipped:
        with pytest.raises(pytest.skip.Exception, match=r"Plain has no|action_names"):
            each()


def test_starter_names_its_class_in_both_files(tmp_path: Path) -> None:
    file, test = write_starter("TowerOfHanoi", tmp_path)
    assert (file.name, test.name) == ("tower_of_hanoi.py", "test_tower_of_hanoi.py")
    text = file.read_text()
    assert text.startswith('"""TowerOfHanoi, an environment') and '"""Tower of hanoi: ' in text
    assert "from tower_of_hanoi import TowerOfHanoi" in test.read_text()
    assert "turnwise." not in text + test.read_text(), "public names only"


def test_write_starter_never_overwrites(tmp_path: Path) -> None:
    write_starter("Mine", tmp_path)
    with pytest.raises(UserError, match="exists"):
        write_starter("Mine", tmp_path)


@pytest.mark.parametrize("name", ["", "mine", "1Mine", "My Env", "../Mine", "Mine:X", "True", "None"])
def test_write_starter_rejects_invalid_class_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="is not a class name"):
        write_starter(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_envs_command_rejects_missing_and_extra_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "new"]) == 2 and "GuessNumber" in capsys.readouterr().err
    assert main(["envs", "bandit", "sokoban"]) == 2 and "Unexpected argument" in capsys.readouterr().err
