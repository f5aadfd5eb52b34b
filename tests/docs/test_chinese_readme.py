"""README.zh-CN.md has the structure, the links, the commands and the numbers of README.md."""

import re
from pathlib import Path

import pytest

from pages_for_tests import FENCE, ROOT, blocks_of, links_of

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
NUMBER = re.compile(r"\d[\d.:]*\d %|\d+\.\d+\.\d+|\b\d+(?:\.\d+)? %|\d+:\d\d|\d{4}-\d\d-\d\d")


def structure(page: Path) -> list[str]:
    """Return a line per heading, table row, list item, picture and block, in order, without their words."""
    text = FENCE.sub(lambda fence: f"```{fence['language']}\n", page.read_text(encoding="utf-8"))
    kinds = []
    for line in text.splitlines():
        if found := re.match(r"#+ |- |!\[|```\w*", line):
            kinds.append(found[0])
        elif line.startswith("|"):
            kinds.append("|" * line.replace("\\|", "").count("|"))
    return kinds


def commands(page: Path) -> list[str]:
    """Return the code of the blocks without comments, and the inline code outside of tables."""
    text = page.read_text(encoding="utf-8")
    blocks = [re.sub(r" *#.*", "", block.text) for block in blocks_of(page)]
    prose = "\n".join(line for line in FENCE.sub("", text).splitlines() if not line.startswith("|"))
    return [*blocks, *sorted(re.findall(r"`([^`\n]+)`", prose))]


def links(page: Path) -> list[str]:
    return [link for link in links_of(page) if link not in (ENGLISH.name, CHINESE.name)]


def numbers(page: Path) -> list[str]:
    return sorted(NUMBER.findall(page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("part", [structure, commands, links, numbers], ids=lambda part: part.__name__)
def test_readmes_have_the_same_part(part) -> None:
    assert part(CHINESE) == part(ENGLISH) and len(part(ENGLISH)) > 5


def test_readmes_link_each_other() -> None:
    assert CHINESE.name in links_of(ENGLISH) and ENGLISH.name in links_of(CHINESE)


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        (structure, "\n## 接着读", "\n### 接着读"),
        (structure, "| GPU 集群 |\n", "|\n"),
        (commands, "make demo ", "make demos "),
        (links, "docs/results.md", "docs/result.md"),
        (numbers, "98.0 %", "89.0 %"),
    ],
)
def test_a_difference_is_noticed(part, old: str, new: str, tmp_path: Path) -> None:
    text = CHINESE.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "page.md").write_text(text.replace(old, new, 1), encoding="utf-8")
    assert part(tmp_path / "page.md") != part(ENGLISH)
