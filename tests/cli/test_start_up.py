"""Help and mistakes answer at once: torch and transformers are not imported for them.

How long they take: benchmarks/start_up.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "numpy")
QUICK = (
    "--help",
    "envs",
    "recipes",
    "trian",
    "train frozn_lake",
    "train frozen_lake --stpes 3",
    "train frozen_lake --algo.clip_hi 3",
)
LIGHT = ("models", "train --help", "eval --help", "export --help", "play --help")

COMMAND = """
from turnwise.cli.main import main
main(sys.argv[2:])
"""
LIBRARIES = """
attr attrs cyclopts docstring_parser rich markdown_it mdurl pygments annotated_types pydantic pydantic_core tomli_w
typing_extensions typing_inspection
"""
"""What the command line and the configuration are made of: a tenth of a second."""
REPORT = """
with open(sys.argv[1], "w") as file:
    json.dump(list(sys.modules), file)
"""
MOST_OF_OURS = 100
"""Modules of turnwise that a quick command may import."""


def imported(code: str, typed: str, folder: Path) -> list[str]:
    """The modules that the code imports in a new process."""
    report = folder / "report.json"
    program = f"import json, sys\n{code}\n{REPORT}"
    subprocess.run([sys.executable, "-c", program, str(report), *typed.split()], capture_output=True, check=True)
    modules: list[str] = json.loads(report.read_text())
    return modules


def others(modules: list[str]) -> set[str]:
    """Packages beyond Python's own, ours and the libraries; names with an underscore are hooks of the installation."""
    found = {name.partition(".")[0] for name in modules if not name.startswith("_")}
    return found - sys.stdlib_module_names - {"turnwise", *LIBRARIES.split()}


@pytest.mark.parametrize("typed", QUICK)
def test_a_quick_command_imports_its_libraries_and_little_of_ours(typed: str, tmp_path: Path) -> None:
    modules = imported(COMMAND, typed, tmp_path)
    assert "turnwise.cli.main" in modules
    assert others(modules) == set()
    assert len([name for name in modules if name.startswith("turnwise")]) < MOST_OF_OURS


@pytest.mark.parametrize("typed", LIGHT)
def test_nothing_heavy_is_imported(typed: str, tmp_path: Path) -> None:
    modules = imported(COMMAND, typed, tmp_path)
    assert "turnwise.cli.main" in modules
    assert [name for name in HEAVY if name in modules] == []


def test_a_list_of_environments_imports_none_of_them(tmp_path: Path) -> None:
    modules = imported(COMMAND, "envs", tmp_path)
    assert [name for name in modules if name.startswith("turnwise.envs.")] == [
        "turnwise.envs.catalogue",
        "turnwise.envs.starter",
        "turnwise.envs.starter.write",
    ]


def test_the_probe_would_notice_torch(tmp_path: Path) -> None:
    assert "torch" in others(imported(COMMAND, "train frozen_lake --dry-run", tmp_path))


def test_the_installed_command_and_the_module_answer_alike() -> None:
    script = Path(sys.executable).parent / "turnwise"
    answers = [
        subprocess.run([*command, "recipes"], capture_output=True, text=True)
        for command in ([str(script)], [sys.executable, "-m", "turnwise"])
    ]
    assert answers[0].returncode == answers[1].returncode == 0
    assert answers[0].stdout == answers[1].stdout


def test_an_unexpected_failure_shows_its_traceback_and_exits_with_1() -> None:
    code = "import turnwise.cli.main as m, sys\ndef run(tokens): 1 / 0\nm.run = run\nsys.exit(m.main(['envs']))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr
    assert "ZeroDivisionError" in answer.stderr


@pytest.mark.parametrize("typed", ["train --help-all", "recipes"])
def test_a_reader_that_goes_away_is_no_complaint(typed: str) -> None:
    """Long output fails while it is written, short output at the last flush."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "turnwise", *typed.split()]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    answer = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=buffered)
    os.close(write)
    assert (answer.returncode, answer.stderr) == (141, "")
