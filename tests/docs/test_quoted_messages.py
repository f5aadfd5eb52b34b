"""Messages that troubleshooting.md quotes are those of the source, apart from values."""

import ast
import re
from pathlib import Path

import turnwise

MIN_PART = 10
"""Characters of a text between two values that identify a message."""
SHARE = 0.35
"""Share of a quoted message that must be text of the source; the rest is values."""
PAGE = Path(__file__).parents[2] / "docs/troubleshooting.md"


def quoted_messages(page: str) -> list[str]:
    """Return the lines of `text` blocks, and the first cells of tables whose first column is named message."""
    blocks = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    for table in re.findall(r"^\| message .*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE):
        lines += [row.split("|")[1].strip().strip("`") for row in table.splitlines()]
    return lines


def source_parts() -> set[str]:
    """Return the texts of the source, cut where a value is inserted; a quote in Markdown has no backquotes."""
    parts: set[str] = set()
    for file in Path(turnwise.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts.update(re.split(r"\{[^}]*\}|%[sd]", node.value.replace("`", "")))
    return {part for part in parts if len(part) >= MIN_PART}


def share_of_source(message: str, parts: set[str]) -> float:
    """Return the share of a message that texts of the source make up."""
    known = [False] * len(message)
    for part in parts:
        start = message.find(part)
        if start >= 0:
            known[start : start + len(part)] = [True] * len(part)
    return sum(known) / len(message)


def test_quoted_messages_exist_in_the_source() -> None:
    parts, messages = source_parts(), quoted_messages(PAGE.read_text(encoding="utf-8"))
    assert len(messages) > 20
    assert {message: share for message in messages if (share := share_of_source(message, parts)) < SHARE} == {}


def test_share_of_source_notices_a_message_that_no_longer_exists() -> None:
    old = "--resume continues with the run's own settings. Leave out --algo.kl_coef, or start another run with it: ..."
    assert share_of_source(old, source_parts()) < SHARE
