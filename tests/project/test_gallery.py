"""The examples of docs/gallery.md: each runs in a small form, and `make soak` trains it until it has learned."""

import re
import runpy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from pages_for_tests import ROOT, blocks_of
from turnwise.cli.main import main

EXAMPLES = ROOT / "examples"
SMALL: dict[str, Any] = {"model__warmup_steps": 2, "eval__episodes": 2}
FEW_EPISODES: dict[str, Any] = {"rollout__groups": 2, "rollout__group_size": 2, "train__mini_batch": 4, "steps": 1}


@dataclass(frozen=True, kw_only=True)
class Example:
    file: str
    """File that its command names."""
    before: float
    """Success before, at most."""
    learned: float
    """Success once it has learned, at least: of training episodes in three steps in a row, or of held-out tasks."""
    command: str = "train"
    environment: str = ""
    """Environment that it brings."""
    small: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its small form besides the common ones."""
    held_out: bool = False
    """Use held-out tasks: SFT trains no episodes, and in self-play one player's win is the other's loss."""


GALLERY = {
    "customer_support": Example(file="support.toml", environment="support.py:Support", before=0.2, learned=0.5),
    "sql_analyst": Example(file="analyst.toml", environment="analyst.py:Analyst", before=0.4, learned=0.65),
    "web_shop": Example(
        file="shop.toml", command="sft", environment="shop.py:Shop", before=0.1, learned=0.5, held_out=True
    ),
    "maths_with_python": Example(
        file="maths.toml", command="sft", environment="maths.py:Maths", before=0.1, learned=0.6, held_out=True
    ),
    "search": Example(file="search.toml", command="sft", before=0.1, learned=0.8, held_out=True),
    "game_from_pixels": Example(file="lake.toml", before=0.3, learned=0.5),
    "judged_writing": Example(file="writer.py", before=0.1, learned=0.5),
    "telephone": Example(
        file="telephone.toml",
        environment="telephone.py:Telephone",
        before=0.3,
        learned=0.8,
        small={"rollout__groups": 3, "model__warmup_steps": 40, "eval__episodes": 6},
    ),
    "self_play": Example(file="game.toml", before=0.42, learned=0.46, held_out=True),
}


def start(example: str, **settings: Any) -> tw.Run:
    """Run an example as its command does, with other settings."""
    file = EXAMPLES / example / GALLERY[example].file
    if file.suffix == ".py":
        script = runpy.run_path(str(file))
        with script["serve_judge"]() as url:
            run: tw.Run = script["train"]({"model": "stand-in", "endpoint": url}, **settings)
        return run
    return {"train": tw.train, "sft": tw.sft}[GALLERY[example].command](str(file), **settings)


@pytest.mark.parametrize("example", [name for name, example in GALLERY.items() if example.environment])
def test_environment_of_an_example_is_sound(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its solver always wins, and agents that know nothing do not."""
    file = EXAMPLES / example / GALLERY[example].environment
    assert main(["envs", "check", str(file)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("example", GALLERY)
def test_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    less = {"count": 8, "sft__batch": 4} if GALLERY[example].command == "sft" else FEW_EPISODES
    run = start(example, quiet=True, **SMALL | less | GALLERY[example].small)
    assert run.finished and run.summary["success_after"] is not None


def command_of(example: str) -> str:
    """Return the command that its page shows first."""
    block = next(block for block in blocks_of(EXAMPLES / example / "README.md") if block.language == "bash")
    return block.text.splitlines()[0]


@pytest.mark.parametrize("example", GALLERY)
def test_page_of_an_example_shows_its_command(example: str) -> None:
    described = GALLERY[example]
    program = "python" if described.file.endswith(".py") else f"turnwise {described.command}"
    assert command_of(example) == f"{program} examples/{example}/{described.file}"


def test_pages_of_the_examples_of_agents_show_their_command() -> None:
    """tests/run/test_agent_run.py runs and trains them."""
    for page in EXAMPLES.glob("agent_*/README.md"):
        assert command_of(page.parent.name) == f"turnwise train examples/{page.parent.name}/agent.toml"


def test_gallery_has_a_row_for_each_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[.+?\]\(\.\./examples/(\w+)/README\.md\) \|.*?`(.+?)` \|", page, re.MULTILINE)
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert dict(rows) == {example: command_of(example) for example in folders}
    assert folders == {path.name for path in EXAMPLES.iterdir() if path.name != "notebooks"}


@pytest.mark.soak
@pytest.mark.parametrize("example", GALLERY)
def test_example_learns(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own settings; training stops as soon as it has learned, since a test has 15 minutes."""
    monkeypatch.chdir(tmp_path)
    described, success = GALLERY[example], list[float]()
    if described.held_out:
        summary = start(example, quiet=True, eval__episodes=256).summary
        assert summary["success_before"] <= described.before and summary["success_after"] >= described.learned
        return

    def stop_when_learned(row: Mapping[str, Any]) -> None:
        success.append(row["rollout/success"])
        if len(success) >= 3 and min(success[-3:]) >= described.learned:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        start(example, quiet=True, eval__episodes=1, on_step=stop_when_learned)
    assert success[0] <= described.before and min(success[-3:]) >= described.learned
