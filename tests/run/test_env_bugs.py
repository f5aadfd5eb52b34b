"""Bugs in a user's environment are reported with file and line."""

import traceback
from pathlib import Path

import pytest

from runs_for_tests import quiet, small
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec
from turnwise.run.train import train

ENV = '''
import turnwise as tw

class Buggy(tw.TextEnv):
    """Say 1."""
    action_names = ("1", "2")
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        fail("__init__")
    def reset(self, rng):
        fail("reset")
        return "go"
    def step(self, action):
        fail("step")
        return tw.won() if action == "1" else tw.goes_on()
    def solve(self):
        fail("solve")
        return ["1"]
    def draw(self):
        fail("draw")

def fail(where):
    if where == "METHOD":
        {}["missing"]  # line 24
'''


def write_env(folder: Path, method: str) -> str:
    (folder / f"buggy_{method}.py").write_text(ENV.replace("METHOD", method))
    return f"{folder / f'buggy_{method}.py'}:Buggy"


@pytest.mark.parametrize("method", ["__init__", "reset", "draw"])
def test_train_reports_a_bug_with_file_and_line(method: str, tmp_path: Path) -> None:
    env = write_env(tmp_path, method)
    with pytest.raises(UserError) as caught:
        train(small(tmp_path / "runs", env__kind=env, model__warmup_steps=0), console=quiet())
    assert f"KeyError: 'missing' at buggy_{method}.py:24" in str(caught.value)
    assert "\n" not in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert f'buggy_{method}.py", line 24, in fail' in shown and "The above exception was the direct cause" in shown


def test_sft_reports_a_bug_in_solve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = write_env(tmp_path, "solve")
    typed = ["sft", env, "--sft.count", "2", "--record.folder", str(tmp_path), "--model.warmup_steps", "0"]
    assert main(typed) == 2
    line = (
        "turnwise: Buggy's solver or random answer raised KeyError: 'missing' at buggy_solve.py:24. --traceback shows"
    )
    assert line in capsys.readouterr().err


def play(env: str, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    code = main(["play", env, *options])
    return code, capsys.readouterr().err


def test_traceback_option_shows_the_whole_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["1", "1"])
    monkeypatch.setattr("builtins.input", lambda *given: next(answers))
    env = write_env(tmp_path, "step")
    code, shown = play(env, capsys)
    assert code == 2
    line = "turnwise: Buggy.step raised KeyError: 'missing' at buggy_step.py:24"
    assert shown == f"{line}. --traceback shows the traceback.\n"
    code, shown = play(env, capsys, "--traceback")
    assert code == 2 and shown.startswith("Traceback (most recent call last):") and shown.endswith(f"\n{line}\n")
    assert 'buggy_step.py", line 24, in fail' in shown


def test_import_error_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import json\n\njson.loads('{')\n")
    with pytest.raises(UserError, match=r"could not be loaded: JSONDecodeError: .* at broken\.py:3$"):
        load_spec(f"{tmp_path / 'broken.py'}:Env")
