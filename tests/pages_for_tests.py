"""The documentation as Markdown: pages, fenced blocks, links and headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for folder in ("docs", "examples", "skills") for page in sorted((ROOT / folder).rglob("*.md"))),
]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (?P<name>[\w-]+\.(?:py|toml))\b")
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->\n\Z")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


@dataclass(frozen=True, kw_only=True)
class Block:
    page: Path
    line: int
    """Line of its first line of text."""
    language: str
    text: str
    not_run: str | None
    """Reason in a comment `<!-- not run: REASON -->` on the line before the block."""

    @property
    def file(self) -> str | None:
        """Name of the file that the block is, by the comment in its first line."""
        found = FILE.match(self.text) if self.language in ("python", "toml") else None
        return found["name"] if found else None

    @property
    def source(self) -> str:
        return f"{page_name(self.page)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, fence.start("text")) + 1,
            language=fence["language"],
            text=re.sub(f"^{fence['indent']}", "", fence["text"], flags=re.MULTILINE),
            not_run=found["reason"] if (found := NOT_RUN.search(text[: fence.start()])) else None,
        )
        for fence in FENCE.finditer(text)
    ]


def prose_of(page: Path) -> str:
    """Return a page without fenced blocks and inline code, whose brackets are not links."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", text)


def links_of(page: Path) -> Iterator[str]:
    """Yield the targets of links and pictures."""
    prose = prose_of(page)
    yield from re.findall(r"\]\(<?([^\s)>]+)>?(?: \"[^\"]*\")?\)", prose)
    yield from re.findall(r"^\[[^\]]+\]: *(\S+)", prose, flags=re.MULTILINE)
    yield from re.findall(r"<(?:img|a|source)\b[^>]*?\b(?:src|href|srcset)=\"([^\"]+)\"", prose)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        repeats = 0
        while anchor in anchors:
            repeats += 1
            anchor = f"{slug}-{repeats}"
        anchors.add(anchor)
    return anchors | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
