"""Every algorithm has a section with its settings, and every formula of the pages can be rendered."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from pages_for_tests import ROOT
from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.estimators import ESTIMATORS
from turnwise.algos.filters import FILTERS
from turnwise.algos.losses import AGGREGATIONS, LOSSES
from turnwise.algos.normalisation import NORMALISATIONS
from turnwise.algos.off_policy import CORRECTIONS, REJECTIONS
from turnwise.recipes.presets import method_names

PAGES = sorted((ROOT / "docs/algorithms").glob("*.md"))
TABLES = {
    "advantage": ADVANTAGES,
    "loss": LOSSES,
    "filter": FILTERS,
    "correction": CORRECTIONS,
    "rejection": REJECTIONS,
    "normalise": NORMALISATIONS,
    "estimator": ESTIMATORS,
    "aggregation": AGGREGATIONS,
}
SECTIONS = re.compile(r"^### (?P<names>`.+)\n(?P<text>(?:(?!^##).*\n)*)", re.MULTILINE)
SOURCE = re.compile(r"Papers?:|Source:|Named by|presets")
ROWS = re.compile(r"^\| (?:<a id=\"\w+\"></a>)?`([\w-]+)` \|", re.MULTILINE)


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("formulas")


def pages_about(choice: str) -> str:
    """Return the pages with the settings of a choice of algo, or with a heading about it."""
    about = re.compile(rf"^(<!-- settings of |## .*`)algo\.{choice}\b", re.MULTILINE)
    return "\n".join(text for page in PAGES if about.search(text := page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("choice", TABLES)
def test_every_algorithm_has_a_section(choice: str) -> None:
    text = pages_about(choice)
    described = {name for section in SECTIONS.finditer(text) for name in re.findall(r"`(.+?)`", section["names"])}
    described |= set(ROWS.findall(text))
    assert set(TABLES[choice]) - described - {"none"} == set()


def test_every_preset_is_described() -> None:
    text = (ROOT / "docs/algorithms/presets.md").read_text(encoding="utf-8")
    assert [name for name in method_names() if f"`{name}`" not in text] == []


@pytest.mark.parametrize("choice", ["advantage", "loss", "correction"])
def test_section_names_the_settings_of_its_algorithm(choice: str) -> None:
    """A section ends its advice with `Settings: ...`, or `Setting: ...` for a single one."""
    wrong = {}
    for section in SECTIONS.finditer(pages_about(choice)):
        algorithm = TABLES[choice].get(section["names"].strip("`"))
        listed = re.search(r"Settings?: (.*?)\. ", section["text"].replace("\n", " "))
        names = set(re.findall(r"`(\w+)`", listed[1])) if listed else set()
        if algorithm is not None and names != set(algorithm.model_fields):
            wrong[section["names"]] = set(algorithm.model_fields)
    assert wrong == {}


@pytest.mark.parametrize("choice", ["advantage", "loss", "correction"])
def test_section_has_a_formula_and_a_source(choice: str) -> None:
    sections = {section["names"].strip("`"): section["text"] for section in SECTIONS.finditer(pages_about(choice))}
    lacking = [name for name in TABLES[choice] if name in sections and "$" not in sections[name]]
    lacking += [name for name in TABLES[choice] if name in sections and not SOURCE.search(sections[name])]
    assert lacking == []


def test_formulas_become_mathml(formulas: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        r'<p><span class="arithmatex">\(r_t &lt; 1\)</span></p><div class="arithmatex">\[\frac{1}{2}\]</div>'
    )
    formulas.render_formulas(tmp_path)
    text = page.read_text()
    assert "<math><msub><mi>r</mi><mi>t</mi></msub><mo>&lt;</mo>" in text and '<math display="block"><mfrac>' in text
    assert "arithmatex" not in text


def test_invalid_formula_stops_the_build(formulas: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(r'<span class="arithmatex">\(\frac{1}\)</span>')
    with pytest.raises(SystemExit, match=r"page.html: .*The site was not built"):
        formulas.render_formulas(tmp_path)
