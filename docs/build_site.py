"""Build the documentation site in build/site: `python docs/build_site.py`, or `make docs`. A warning is an error.

Beside each page stands its Markdown, and llms.txt lists them with their first sentence, for programs that read.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from formulas import render_formulas

REPOSITORY = "https://github.com/turnwise-rl/turnwise/blob/main/"
FILE_LINK = re.compile(r"(?<=\]\()(?!#|[a-z]+:)(?P<path>[^)#\s]+)")
"""Path of a link to a file: of the checkout, relative to the page."""
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
NO_PAGES = ("*.py", "__pycache__", "*.yaml", "*.sh")
NavEntry = str | list["NavEntry"] | dict[str, "NavEntry"]
"""Of mkdocs.yml: a page, or a dict from a title to a page or to further entries."""


def build_site(root: Path) -> None:
    """Build build/site of a checkout from its docs/ and mkdocs.yml."""
    folder, site = root / "build/pages", root / "build/site"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "docs", folder, ignore=shutil.ignore_patterns(*NO_PAGES))
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(link_repository(text, page.relative_to(folder), root), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if built.returncode:
        raise SystemExit(f"{built.stdout.partition('Traceback')[0]}The site was not built: fix the pages above.")
    render_formulas(site)
    for page in folder.rglob("*.md"):
        shutil.copy(page, site / page.relative_to(folder))
    (site / "llms.txt").write_text(list_pages(read_sections(root), folder), encoding="utf-8")


def link_repository(text: str, page: Path, root: Path) -> str:
    """Return the text of docs/PAGE with links to files of the checkout that are not in the site made absolute."""

    def absolute(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(Path("docs", page).parent / link["path"]))
        in_site = target.is_relative_to("docs") and (root / "build/pages" / target.relative_to("docs")).exists()
        return link["path"] if in_site or not (root / target).exists() else f"{REPOSITORY}{target}"

    return FILE_LINK.sub(absolute, text)


def read_sections(root: Path) -> dict[str, list[str]]:
    """Return the navigation of mkdocs.yml: the title of each section -> its pages."""
    _, nav = (root / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")  # before it are tags of the builder
    return {title: list(pages_below(entry)) for section in yaml.safe_load(nav) for title, entry in section.items()}


def pages_below(entry: NavEntry) -> Iterator[str]:
    """Yield the pages of an entry and of the entries in it."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_below(below)


def list_pages(sections: dict[str, list[str]], folder: Path) -> str:
    """Return llms.txt: what turnwise is, and by section each page with its first sentence."""
    lines = ["# turnwise", "", "> Train language-model agents that act over many turns, with reinforcement learning."]
    for section, pages in sections.items():
        lines += ["", f"## {section}", "", *(describe_page(page, folder) for page in pages)]
    return "\n".join(lines) + "\n"


def describe_page(page: str, folder: Path) -> str:
    title, paragraph = (folder / page).read_text(encoding="utf-8").split("\n\n")[:2]
    sentence = LINK.sub(r"\1", " ".join(paragraph.split())).partition(". ")[0].rstrip(".:")
    return f"- [{title.removeprefix('# ')}]({page}): {sentence}."


if __name__ == "__main__":
    build_site(Path(__file__).parents[1])
