"""The notebooks run from their first cell to their last, in a small form; they are stored without outputs.

`make soak` runs them as they are.
"""

import os
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from pages_for_tests import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SMALL = {"STEPS": 1, "EPISODES": 2, "GROUPS": 1}
LESS = {
    "steps=STEPS": "steps=STEPS, model__warmup_steps=15, rollout__groups=2, rollout__group_size=4, train__mini_batch=8",
    'name = "tiny"': 'name = "tiny"\nwarmup_steps = 15',
}
"""What a test replaces in the call that trains: most of the time is warm-up."""


def parameters_cell(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    (cell,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def read(file: Path) -> nbformat.NotebookNode:
    book = nbformat.read(file, as_version=4)
    nbformat.validate(book)
    return book


def test_all_notebooks_are_listed_in_order() -> None:
    assert [file.stem.partition("_")[0] for file in NOTEBOOKS] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_has_no_outputs(file: Path) -> None:
    cells = [cell for cell in read(file).cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    names = {line.partition(" = ")[0] for line in parameters_cell(read(file)).source.splitlines()}
    assert names <= SMALL.keys()


def run_notebook(file: Path, folder: Path, *, small: bool, optional_part: Callable) -> nbformat.NotebookNode:
    try:
        from nbclient import NotebookClient
    except ImportError:
        optional_part("nbclient is not installed: pip install '.[test]'")
    book = read(file)
    if small:
        cell = parameters_cell(book)
        names = [line.partition(" = ")[0] for line in cell.source.splitlines()]
        cell.source = "\n".join(f"{name} = {SMALL[name]}" for name in names)
        for cell in book.cells:
            for whole, less in LESS.items() if cell.cell_type == "code" else ():
                cell.source = cell.source.replace(whole, less)
    return NotebookClient(book, timeout=3600, resources={"metadata": {"path": str(folder)}}).execute()


@pytest.fixture
def kernel_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.usefixtures("kernel_variables")
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs(file: Path, tmp_path: Path, optional_part: Callable) -> None:
    book = run_notebook(file, tmp_path, small=True, optional_part=optional_part)
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "summary.json").is_file()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    printed = [output.text for output in outputs if output.output_type == "stream"]
    assert not any("\x1b[" in text or "\r" in text for text in printed), "escape codes in a notebook"


@pytest.mark.soak
@pytest.mark.usefixtures("kernel_variables")
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_whole_notebook_runs(file: Path, tmp_path: Path, optional_part: Callable) -> None:
    run_notebook(file, tmp_path, small=False, optional_part=optional_part)
