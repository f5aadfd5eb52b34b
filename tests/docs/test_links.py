"""Links, anchors and pictures of README, docs and the other pages lead somewhere."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from pages_for_tests import PAGES, ROOT, anchors_of, blocks_of, links_of, page_name

REPOSITORY = re.compile(
    r"https://(?:github\.com/turnwise-rl/turnwise/(?:blob|tree|raw|commits)|raw\.githubusercontent\.com/turnwise-rl)/.*"
)
"""Links to the repository's own files. They are relative instead: a reader of a checkout may not reach the site."""
UNPUBLISHED = re.compile(r"pip (?:install|download)[^\n`]*?(?<![\w./-])turnwise\b|git\+https|git clone")
"""Commands that need a release of turnwise, or its repository on a site."""
PICTURES = (".svg", ".png", ".gif", ".jpg", ".webp")


def broken_links(page: Path, root: Path = ROOT) -> list[str]:
    return [link for link in links_of(page) if not link_works(page, link, root)]


def link_works(page: Path, link: str, root: Path) -> bool:
    """Return whether a link leads to a file, and to a heading in it; links to other sites count as working."""
    path, _, anchor = link.partition("#")
    if re.match(r"[a-z]+:", path):
        return REPOSITORY.fullmatch(path) is None
    target = page.parent / unquote(path) if path else page
    if not target.exists() or not target.resolve().is_relative_to(root):
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors_of(target))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def commands_of(page: Path) -> str:
    """Return a page without its blocks of output, which quote messages. errors.md is nothing but messages."""
    text = page.read_text(encoding="utf-8")
    for block in blocks_of(page):
        if block.language == "text":
            text = text.replace(block.text, "")
    return text


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "errors.md"], ids=page_name)
def test_commands_of_a_page_need_no_release(page: Path) -> None:
    assert UNPUBLISHED.findall(commands_of(page)) == []


@pytest.mark.parametrize(
    ("command", "needs_release"),
    [
        ("pip install turnwise", True),
        ("pip install 'vllm>=0.26' turnwise", True),
        ("pip install 'turnwise[view]'", True),
        ("pip install 'turnwise[view] @ git+https://example.com/x'", True),
        ("pip install 'other @ git+https://example.com/x'", True),
        ("git clone https://example.com/x", True),
        ("pip install '.[view]'", False),
        ("pip install --no-index --find-links wheels wheels/turnwise-*.whl", False),
        ("pip install torch` in turnwise", False),
        ("pip uninstall turnwise", False),
    ],
)
def test_commands_that_need_a_release_are_found(command: str, needs_release: bool) -> None:
    assert bool(UNPUBLISHED.search(command)) == needs_release


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
        ("https://github.com/turnwise-rl/turnwise/blob/main/docs/there.md#a-heading-of-code-x", False),
        ("https://github.com/turnwise-rl/turnwise/tree/main/docs", False),
        ("https://raw.githubusercontent.com/turnwise-rl/turnwise/main/docs/picture.svg", False),
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
