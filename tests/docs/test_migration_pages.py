"""Each migration page has the same job twice: for the other library, and for turnwise, which test_blocks runs."""

import ast
import re
from pathlib import Path

import pytest

from blocks_for_tests import split_commands
from pages_for_tests import ROOT, blocks_of, page_name

PAGES = sorted((ROOT / "docs/migration").glob("*.md"))
INDEX = ROOT / "docs/coming-from.md"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_migration_page_has_the_job_twice(page: Path) -> None:
    python = [block for block in blocks_of(page) if block.language == "python"]
    theirs, ours = python[0], python[1]
    assert theirs.not_run is not None and theirs.not_run.startswith("needs ")
    assert "turnwise" not in theirs.text
    assert ours.not_run is None and "import turnwise as tw" in ours.text
    for block in python:
        ast.parse(block.text)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_migration_page_trains(page: Path) -> None:
    """The commands are run by test_blocks, except those of the other library."""
    ours = [block for block in blocks_of(page) if block.language == "bash" and block.not_run is None]
    commands = [command for block in ours for command in split_commands(block.text)]
    python = [block.text for block in blocks_of(page) if block.language == "python"]
    assert any(command.startswith("turnwise train ") for command in commands) or "tw.Trainer(" in python[1]
    assert all(re.search(r"--model.name tiny|--train.steps 1|eval", command) for command in commands)


def test_index_links_every_migration_page() -> None:
    linked = re.findall(r"\(migration/(\w+)\.md\)", INDEX.read_text(encoding="utf-8"))
    assert linked == list(dict.fromkeys(linked)) and set(linked) == {page.stem for page in PAGES}
