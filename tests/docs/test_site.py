"""The documentation site is built without warnings, has every page, and works without a network."""

import importlib
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from pages_for_tests import ROOT

NAV = """\
nav:
  - Start:
      - index.md
  - Guides:
      - First:
          - Step by step: first/steps.md
"""


@pytest.fixture
def build_site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("build_site")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the settings of the site and two pages."""
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(settings.read_text().partition("nav:")[0] + NAV)
    (tmp_path / "docs/first").mkdir(parents=True)
    (tmp_path / "docs/index.md").write_text(
        "# Title\n\nThe first [sentence](#part-of-it). Another.\n\n## Part of `it`\n"
    )
    (tmp_path / "docs/first/steps.md").write_text(
        "# Steps\n\nSee [it](../index.md#part-of-it), [the code](../../src/file.py#L1), [a job](../job.sh) and [a site](https://a.example/x).\n"
    )
    (tmp_path / "docs/job.sh").touch()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/file.py").touch()
    return tmp_path


def test_site_has_every_page_as_html_and_markdown(build_site: ModuleType, tmp_path: Path) -> None:
    for path in ROOT.iterdir():  # links to other files of the repository are checked too
        if not path.name.startswith(".") and path.name not in ("build", "docs", "mkdocs.yml"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    build_site.build_site(tmp_path)
    site = tmp_path / "build/site"
    listed = re.findall(r"^- \[.+\]\((.+\.md)\): .+\.$", (site / "llms.txt").read_text(), re.MULTILINE)
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(listed) == pages, "the navigation has each page once"
    for name in pages:
        assert (site / name).is_file() and (site / name).with_suffix(".html").is_file()
    links = re.findall(r'(?:src|href)="(https?://[^"]+)"[^>]*(?:stylesheet|script)', (site / "index.html").read_text())
    assert links == [], "styles and scripts come with the site"


def test_llms_txt_has_sections_and_first_sentences(build_site: ModuleType, checkout: Path) -> None:
    build_site.build_site(checkout)
    assert (checkout / "build/site/llms.txt").read_text().partition("## ")[2] == (
        "Start\n\n- [Title](index.md): The first sentence.\n"
        "\n## Guides\n\n- [Steps](first/steps.md): See it, the code, a job and a site.\n"
    )


def test_links_to_files_outside_of_the_site_lead_to_the_repository(build_site: ModuleType, checkout: Path) -> None:
    build_site.build_site(checkout)
    assert (checkout / "build/site/first/steps.md").read_text().splitlines()[2] == (
        f"See [it](../index.md#part-of-it), [the code]({build_site.REPOSITORY}src/file.py#L1), "
        f"[a job]({build_site.REPOSITORY}docs/job.sh) and [a site](https://a.example/x)."
    )


@pytest.mark.parametrize("link", ["missing.md", "#missing", "first/steps.md#missing", "first/missing.md"])
def test_site_with_a_broken_link_is_not_built(build_site: ModuleType, checkout: Path, link: str) -> None:
    page = checkout / "docs/index.md"
    page.write_text(f"{page.read_text()}\n[broken]({link})\n")
    with pytest.raises(SystemExit, match="The site was not built"):
        build_site.build_site(checkout)
