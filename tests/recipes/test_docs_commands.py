"""What the pages on environments, imitation and evaluation tell one to type is accepted, and the benchmark runs."""

import importlib
import re
import shlex
import shutil
from pathlib import Path

import pytest

from runs_for_tests import quiet, small
from turnwise.cli.main import main
from turnwise.data.demonstrations import read_conversations
from turnwise.recipes import evaluation, export
from turnwise.recipes import sft as imitation
from turnwise.recipes.environment_mix import build_environment_mix

ROOT = Path(__file__).parents[2]
PAGES = ("environments.md", "sft-and-eval.md", "selfplay.md")
TALK = (
    '{"messages": [{"role": "user", "content": "Snow?"}, {"role": "assistant", "content": "<answer>white</answer>"}]}\n'
)


def commands(page: str) -> list[list[str]]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line.partition("  #")[0])[1:] for line in lines if line.startswith("turnwise ")]


COMMANDS = [words for page in PAGES for words in commands(page)]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a second: what it learnt does not matter here."""
    folder = tmp_path_factory.mktemp("run")
    least = {
        "model__warmup_steps": 0,
        "eval__episodes": 1,
        "sft__demos": "solver",
        "sft__count": 2,
        "sft__think": False,
    }
    longer = {"rollout__max_tokens": 1024, "rollout__max_new_tokens": 64}
    imitation.sft(small(folder, env__kind="sokoban", **least, **longer), console=quiet())
    return folder / "run"


@pytest.fixture
def workplace(tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which all commands of a page but one were run."""
    monkeypatch.chdir(tmp_path)
    for name in {word for words in COMMANDS for word in words if word.startswith("runs/")}:
        shutil.copytree(finished_run, tmp_path / name)
    shutil.copytree(next((finished_run / "checkpoints").glob("step_*")), tmp_path / "merged")
    (tmp_path / "talks.jsonl").write_text(TALK)
    return tmp_path


def test_there_are_commands_to_try() -> None:
    assert {words[0] for words in COMMANDS} == {"train", "sft", "eval", "merge", "envs"}
    assert len(COMMANDS) > 15


def test_the_conversation_with_a_tool_is_one_that_is_read(tmp_path: Path) -> None:
    text = (ROOT / "docs/sft-and-eval.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r'^```\n({"messages".*?)^```', text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "talks.jsonl").write_text(" ".join(shown.splitlines()))
    (exchanges,) = read_conversations(tmp_path / "talks.jsonl")
    assert [exchange.answer for exchange in exchanges] == ["<call>price fig</call>", "<answer>14</answer>"]
    assert [message.role for exchange in exchanges for message in exchange.messages] == ["system", "user", "tool"]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_accepted(words: list[str], workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is asked what it would do; what else would load a model is stopped once all checks are behind it."""
    begun: list[str] = []

    def imitate(config, *, resume, override_keys, recipe):
        imitation.check_sft(config, build_environment_mix(config), override_keys)
        assert (recipe is None) == resume
        assert config.sft.demos is not None or resume
        begun.append("sft")

    monkeypatch.setattr(imitation, "sft", imitate)
    monkeypatch.setattr(evaluation, "evaluate_into_folder", lambda plan, out, endpoint_options: begun.append("eval"))
    monkeypatch.setattr(evaluation, "resume_evaluation", lambda path, endpoint_options: begun.append("eval"))
    monkeypatch.setattr(export, "merge", lambda adapter, into: begun.append("merge"))
    if words[0] == "train":
        if ".py:" in words[1]:
            assert main(["envs", "new", words[1].rpartition(":")[2]]) == 0
        words = [*words, "--dry-run"]
    assert main(words) == 0
    assert begun == ([words[0]] if words[0] in ("sft", "eval", "merge") else [])


def test_the_benchmark_of_environments_measures_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    environments = importlib.import_module("environments")
    console = quiet()
    measured = environments.run(environments.arguments(["sokoban", "tic_tac_toe", "--quick"]), console)
    assert [each.case.name for each in measured] == ["sokoban", "sokoban size=8 boxes=2", "tic_tac_toe"]
    assert len(environments.table_of(measured, environments.QUICK).columns) == len(measured[0].row())
    for each in measured:
        assert 0 < each.overhead_s[0] < each.rollout_s[0] and len(each.task_s) == 5
        assert f"{each.overhead_ms:.3f}" in console.file.getvalue()
    assert measured[1].overlap == 0.0 < measured[2].overlap, (
        "levels of that size never come twice, openings of a game do"
    )
