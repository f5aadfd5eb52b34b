"""What the documents tell a reader to type is accepted, their pictures exist, their example does what they say."""

import asyncio
import importlib
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.filters import FILTERS
from turnwise.algos.losses import LOSSES
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.algos.rewards import NORMALISERS
from turnwise.cli.main import main
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for

ROOT = Path(__file__).parents[2]
QUIZ = "docs/examples/quiz.py:Quiz"


PICTURES = {
    "algo.advantage": ADVANTAGES,
    "algo.loss": LOSSES,
    "algo.correction": CORRECTIONS,
    "algo.filter": FILTERS,
    "algo.normalise": NORMALISERS,
    "context.mode": ("full", "window", "turn", "summary"),
}
"""What docs/algorithms.md shows a curve of, each by all of its names."""


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8").replace("\\\n", " ")


def commands() -> list[str]:
    return re.findall(r"^turnwise (train .*)$", text_of("cases.md"), flags=re.MULTILINE)


def benchmark_commands() -> list[str]:
    pattern = r"^python benchmarks/algorithms.py (.* -- .*)$"
    return re.findall(pattern, text_of("algorithms.md"), flags=re.MULTILINE)


def test_there_are_commands_to_try() -> None:
    assert len(commands()) == 3
    assert len(benchmark_commands()) == 8


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_cases_is_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*shlex.split(command), "--dry-run"]) == 0


@pytest.mark.parametrize("command", benchmark_commands())
def test_every_run_of_a_comparison_is_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    algorithms = importlib.import_module("algorithms")
    given = algorithms.arguments(shlex.split(command))
    for value in given.values:
        assert main(["train", given.recipe, *algorithms.settings_of(given, value, 0), "--dry-run"]) == 0, value


def test_every_name_has_a_curve() -> None:
    for setting, names in PICTURES.items():
        shown = re.findall(rf"--vary {setting} .*?--values (\S+)", text_of("algorithms.md"))
        assert set(names) <= set(",".join(shown).split(",")), setting


@pytest.mark.parametrize("page", ["algorithms.md", "cases.md"])
def test_pictures_are_there_and_well_formed(page: str) -> None:
    pictures = re.findall(r"!\[[^]]*\]\((\S+)\)", text_of(page))
    assert pictures
    for picture in pictures:
        assert ElementTree.parse(ROOT / "docs" / picture).getroot().tag.endswith("svg"), picture


@pytest.mark.parametrize(
    ("grader", "several", "paid"), [("contains", True, 1.0), ("equals", True, 0.0), ("equals", False, 1.0)]
)
def test_the_quiz_pays_for_lists_only_with_the_loophole(
    grader: str, several: bool, paid: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    kind = load_spec(QUIZ)
    env = kind.make(Task(env=kind.name, params={"grader": grader}, seed=seed_for("train", 0)))
    thing = asyncio.run(env.start()).messages[-1].content
    right = {"grass": "green", "snow": "white", "coal": "black", "blood": "red"}[thing]
    said = f"{right} blue" if several else right
    result = asyncio.run(env.step(assistant(f"<answer>{said}</answer>")))
    assert (result.reward, result.success) == (paid, not several)
