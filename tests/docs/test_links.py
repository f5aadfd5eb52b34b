"""Links, anchors and pictures of README, docs and the other pages lead somewhere."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from pages_for_tests import PAGES, ROOT, anchors_of, links_of, page_name

REPOSITORY = re.compile(
    r"https://(?:github\.com/turnwise-rl/turnwise/(?:blob|tree|raw)|raw\.githubusercontent\.com/turnwise-rl/turnwise)"
    r"/main/(?P<path>.*)"
)
PICTURES = (".svg", ".png", ".gif", ".jpg", ".webp")


def broken_links(page: Path, root: Path = ROOT) -> list[str]:
    return [link for link in links_of(page) if not link_works(page, link, root)]


def link_works(page: Path, link: str, root: Path) -> bool:
    """Return whether a link leads to a file, and to a heading in it; links to other sites count as working."""
    path, _, anchor = link.partition("#")
    if own := REPOSITORY.fullmatch(path):
        target = root / unquote(own["path"])
    elif re.match(r"[a-z]+:", path):
        return True
    else:
        target = page.parent / unquote(path) if path else page
    if not target.exists() or not target.resolve().is_relative_to(root):
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors_of(target))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_links_are_found_in_the_documentation() -> None:
    links = [link for page in PAGES for link in links_of(page)]
    assert len(links) > 50
    assert sum(link.endswith(PICTURES) for link in links) > 20


@pytest.mark.parametrize(
    ("link", "works"),
    [
        ("docs/there.md", True),
        ("docs/missing.md", False),
        ("docs/there.md#a-heading-of-code-x", True),
        ("docs/there.md#a-heading-of-code-x-1", True),
        ("docs/there.md#a-heading-of-code-x-2", False),
        ("#start", True),
        ("#end", False),
        ("../outside.md", False),
        ("https://example.com/missing.md", True),
        ("https://github.com/turnwise-rl/turnwise/blob/main/docs/there.md#a-heading-of-code-x", True),
        ("https://github.com/turnwise-rl/turnwise/blob/main/docs/missing.md", False),
        ("https://github.com/turnwise-rl/turnwise/tree/main/docs", True),
        ("https://raw.githubusercontent.com/turnwise-rl/turnwise/main/docs/picture.svg", True),
        ("https://raw.githubusercontent.com/turnwise-rl/turnwise/main/docs/missing.svg", False),
        ("https://github.com/turnwise-rl/turnwise/issues", True),
    ],
)
def test_broken_links_are_found(tmp_path: Path, link: str, works: bool) -> None:
    folder = tmp_path / "repository"
    (folder / "docs").mkdir(parents=True)
    (tmp_path / "outside.md").write_text("# Outside\n")
    (folder / "docs/there.md").write_text("# Title\n\n## A heading, of `code` x\n\n## A heading, of `code` x\n")
    (folder / "docs/picture.svg").write_text("<svg/>")
    page = folder / "README.md"
    page.write_text(f"# Start\n\nSee [it]({link}).\n\n```\n[not](a-link.md)\n```\nand `[not](one.md)`\n")
    assert broken_links(page, folder) == ([] if works else [link])
