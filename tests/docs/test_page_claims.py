"""Claims of the pages about their examples, tables and pictures."""

import asyncio
import importlib
import re
import shlex
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pages_for_tests import ROOT, blocks_of, links_of
from runs_for_tests import printed, quiet
from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.filters import FILTERS
from turnwise.algos.losses import LOSSES
from turnwise.algos.normalisation import NORMALISATIONS
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.cli.main import main
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.data.conversations import read_conversations
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.tools.tool_factory import make_tools
from turnwise.report.progress import COLUMNS
from turnwise.sandbox.types import SandboxLimits

DOCS = ROOT / "docs"
QUIZ = "docs/examples/quiz.py:Quiz"
CURVES = {
    "algo.advantage": ADVANTAGES.keys() - {"clone", "preference"},
    "algo.loss": LOSSES.keys() - {"awr", "dpo"},
    "algo.correction": CORRECTIONS,
    "algo.filter": FILTERS,
    "algo.normalise": NORMALISATIONS,
    "context": ("full", "window", "turn", "summary"),
}
"""Settings whose names each have a curve in docs/results/; those for stored episodes are in docs/results/offline.md."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8").replace("\\\n", " ")


def comparisons() -> list[str]:
    pages = "\n".join(text_of(f"results/{page.name}") for page in sorted((DOCS / "results").glob("*.md")))
    return re.findall(r"^python benchmarks/algorithms.py (.* -- .*)$", pages, flags=re.MULTILINE)


def test_concepts_page_lists_every_column_of_the_progress_line_once() -> None:
    rows = re.findall(r"^\| ([\w /]+) \| `(\w+/\w+)` \|", text_of("concepts.md"), flags=re.MULTILINE)
    assert sorted(rows) == sorted((metric.line[0], metric.name) for metric in COLUMNS if metric.line)


def test_results_have_comparisons() -> None:
    assert len(comparisons()) == 8


@pytest.mark.parametrize("command", comparisons())
def test_every_run_of_a_comparison_is_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    algorithms = importlib.import_module("algorithms")
    given = algorithms.arguments(shlex.split(command))
    for value in given.values:
        assert main(["train", given.recipe, *algorithms.settings_of(given, value, 0), "--dry-run"]) == 0, value


def test_every_algorithm_has_a_curve() -> None:
    """Each value is in a command, and the command's picture has a panel with its name."""
    for setting, names in CURVES.items():
        commands = [each for each in comparisons() if f"--vary {setting} " in each]
        drawn = set[str]()
        for command in commands:
            values, picture = (re.search(rf"--{option} (\S+)", command)[1] for option in ("values", "picture"))
            titles = {text.text for text in ElementTree.parse(ROOT / picture).iter("{http://www.w3.org/2000/svg}text")}
            drawn |= set(values.split(",")) & titles
        assert set(names) <= drawn, f"{setting}: run the command of docs/results/ for {set(names) - drawn}"


@pytest.mark.parametrize("page", ["results/advantages.md", "cases.md"])
def test_curves_are_well_formed(page: str) -> None:
    pictures = [link for link in links_of(DOCS / page) if link.endswith(".svg")]
    assert pictures
    for picture in pictures:
        assert ElementTree.parse((DOCS / page).parent / picture).getroot().tag.endswith("svg"), picture


@pytest.mark.parametrize(
    ("grader", "several", "paid"), [("contains", True, 1.0), ("equals", True, 0.0), ("equals", False, 1.0)]
)
def test_quiz_rewards_lists_only_with_the_loophole(
    grader: str, several: bool, paid: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    spec = load_spec(QUIZ)
    env = spec.make(Task(env=spec.name, params={"grader": grader}, seed=seed_for("train", 0)))
    thing = asyncio.run(env.start()).messages[-1].content
    right = {"grass": "green", "snow": "white", "coal": "black", "blood": "red"}[thing]
    said = f"{right} blue" if several else right
    result = asyncio.run(env.step(assistant(f"<answer>{said}</answer>")))
    assert (result.reward, result.success) == (paid, not several)


def test_conversation_with_a_tool_can_be_read(tmp_path: Path) -> None:
    (shown,) = (block.text for block in blocks_of(DOCS / "sft-and-eval.md") if block.text.startswith('{"messages"'))
    (tmp_path / "talks.jsonl").write_text(" ".join(shown.splitlines()))
    (exchanges,) = read_conversations(tmp_path / "talks.jsonl")
    assert [exchange.answer for exchange in exchanges] == ["<call>price fig</call>", "<answer>14</answer>"]
    assert [message.role for exchange in exchanges for message in exchange.messages] == ["user", "tool"]


def test_basket_keeps_its_state_within_an_episode(tmp_path: Path) -> None:
    (block,) = (block for block in blocks_of(DOCS / "tools.md") if block.file == "basket.py")
    (tmp_path / "basket.py").write_text(block.text)
    spec = load_spec(f"{tmp_path / 'basket.py'}:Basket")

    async def play(*texts: str) -> tuple[float, bool, bool]:
        episode = spec.make(Task(env=spec.name, params=spec.check_params({}), seed=seed_for("train", 0)))
        wanted = re.findall(r"[a-z]+", (await episode.start()).messages[-1].content.partition(":")[2])
        for text in texts:
            result = await episode.step(assistant(text.format(*wanted)))
        await episode.close()
        return result.reward, result.success, result.terminated

    put = '<tool_call>{{"name": "put", "arguments": {{"fruit": "%s"}}}}</tool_call>'
    assert asyncio.run(play(put % "{0}", put % "{1}")) == (1.0, True, True)
    assert asyncio.run(play(put % "{0}", put % "stone", "<answer>full</answer>")) == (0.0, False, True)


def test_table_of_sandbox_limits_has_the_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.,]+) \|", text_of("tools.md"), flags=re.MULTILINE)
    shown = {name: float(number.replace(",", "")) for name, number in rows}
    assert shown == {field.name: field.default for field in fields(SandboxLimits)}
    (limits,) = re.findall(r'\{ use = "python", timeout_s = (\d+), memory_mb = (\d+) \}', text_of("tools.md"))
    make_tools([{"use": "python", "timeout_s": int(limits[0]), "memory_mb": int(limits[1])}])


def test_environments_benchmark_measures_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    environments = importlib.import_module("environments")
    console = quiet()
    measured = environments.run(environments.arguments(["sokoban", "tic_tac_toe", "--quick"]), console)
    assert [each.case.name for each in measured] == ["sokoban", "sokoban size=8 boxes=2", "tic_tac_toe"]
    assert len(environments.table_of(measured, environments.QUICK).columns) == len(measured[0].row())
    for each in measured:
        assert 0 < each.overhead_s[0] < each.rollout_s[0] and len(each.task_s) == 5
        assert f"{each.overhead_ms:.3f}" in printed(console)
    assert measured[1].overlap == 0.0 < measured[2].overlap, "levels of that size do not repeat; openings of games do"


ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "turnwise"


def test_architecture_page_names_existing_files() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+\.py)?)`", ARCHITECTURE))
    assert len(named) > 50
    assert [name for name in sorted(named) if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []


def test_architecture_page_lists_every_package() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `([a-z_]+)/` \|", ARCHITECTURE, re.MULTILINE)) == packages
