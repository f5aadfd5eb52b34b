"""The generated reference pages are up to date, and describe every setting, option and public name."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import turnwise as tw
from turnwise.cli.commands import COMMANDS
from turnwise.config.keys import all_keys

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("configuration.md", "commands.md", "python-api.md", "metrics.md", "errors.md")
ALGORITHMS = sorted(str(page.relative_to(DOCS)) for page in (DOCS / "algorithms").glob("*.md"))


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("generate")


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def test_generate_writes_the_reference_pages(generate: ModuleType) -> None:
    assert tuple(generate.PAGES) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_generated_page_is_up_to_date(generate: ModuleType, page: str) -> None:
    assert read(page) == generate.update(read(page), generate.PAGES[page]()), f"docs/{page} is stale: run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_generated_page_describes_every_entry(page: str) -> None:
    """An empty cell is a missing description: write it in the source, where the page takes it from."""
    rows = [line for line in read(page).splitlines() if line.startswith("|")]
    assert [row for row in rows if re.search(r"\| *\|", row.replace("\\|", "")) or "None |" in row] == []
    assert [row for row in rows if not row.endswith("|")] == []  # a line break would end the table


@pytest.mark.parametrize("page", ALGORITHMS)
def test_settings_of_algorithms_are_up_to_date(generate: ModuleType, page: str) -> None:
    assert read(page) == generate.fill_settings(read(page)), f"docs/{page} is stale: run `make docs`"


def test_pages_list_every_setting_command_and_public_name() -> None:
    tables = "\n".join(map(read, ["configuration.md", *ALGORITHMS]))
    listed = re.findall(r"^\| `([\w.]+)` \| .* \| .* \|", tables, re.MULTILINE)
    assert [name for name in all_keys() if name not in listed] == []
    assert re.findall(r"^## turnwise ([\w-]+)$", read("commands.md"), re.MULTILINE) == list(COMMANDS)
    assert sorted(re.findall(r"^### tw\.(\w+)$", read("python-api.md"), re.MULTILINE)) == sorted(tw.PUBLIC)


def test_update_keeps_the_text_above_the_marker(generate: ModuleType) -> None:
    page = f"# Title\n\nBy hand.\n{generate.MARKER}\nold\n"
    assert generate.update(page, "new\n") == f"# Title\n\nBy hand.\n{generate.MARKER}\nnew\n"
    with pytest.raises(ValueError, match="has no line"):
        generate.update("# Title\n", "new\n")


@pytest.fixture
def errors_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("errors_page")


def test_errors_page_has_message_and_fix(errors_page: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "raise UserError(f'{path} has no rows of data: write one per line.')\n"
        "raise UserError(f'The tool {tool.__name__} is not known here. Use one of {some()}.')\n"
        "raise UserError(f'{fix()} is what you gave us: do it again.')\n"
        "raise ValueError('This is not for users: ignore it now.')\n"
    )
    assert list(errors_page.read_rows(tmp_path / "module.py")) == [
        ("`PATH has no rows of data`", "write one per line"),
        ("`The tool NAME is not known here`", "Use one of …"),
    ]


def test_errors_page_is_short_and_names_every_topic(errors_page: ModuleType) -> None:
    page = read("errors.md")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(errors_page.TOPICS)
    assert 80 < page.count("\n- `") < 150
