"""What the documents tell a reader to type is accepted, and their example does what they say."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from turnwise.cli.main import main
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.registry import load
from turnwise.envs.seeds import seed_for

ROOT = Path(__file__).parents[2]
QUIZ = "docs/examples/quiz.py:Quiz"


def commands() -> list[str]:
    text = (ROOT / "docs/cases.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^turnwise (train .*)$", text, flags=re.MULTILINE)


def test_there_are_commands_to_try() -> None:
    assert len(commands()) == 3


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_cases_is_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*shlex.split(command), "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("grader", "several", "paid"), [("contains", True, 1.0), ("equals", True, 0.0), ("equals", False, 1.0)]
)
def test_the_quiz_pays_for_lists_only_with_the_loophole(
    grader: str, several: bool, paid: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    kind = load(QUIZ)
    env = kind.make(Task(env=kind.name, params={"grader": grader}, seed=seed_for("train", 0)))
    thing = asyncio.run(env.start()).messages[-1].content
    right = {"grass": "green", "snow": "white", "coal": "black", "blood": "red"}[thing]
    said = f"{right} blue" if several else right
    result = asyncio.run(env.step(assistant(f"<answer>{said}</answer>")))
    assert (result.reward, result.success) == (paid, not several)
