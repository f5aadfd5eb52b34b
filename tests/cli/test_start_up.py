"""Help and mistakes answer at once: torch and transformers are not imported for them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
import cyclopts, pydantic, rich.console, rich.table
cyclopts.App, pydantic.create_model("A", x=(int, 1)).model_json_schema()
"""
REPORT = """
used = resource.getrusage(resource.RUSAGE_SELF)
with open(sys.argv[1], "w") as file:
    json.dump({"modules": list(sys.modules), "cpu_s": used.ru_utime + used.ru_stime}, file)
"""


def probe(code: str, typed: str, folder: Path) -> dict[str, Any]:
    """Runs the code in a new process and tells which modules it imported and what processor time it took."""
    report = folder / "report.json"
    program = f"import json, resource, sys\n{code}\n{REPORT}"
    subprocess.run([sys.executable, "-c", program, str(report), *typed.split()], capture_output=True, check=True)
    answer: dict[str, Any] = json.loads(report.read_text())
    return answer


@pytest.mark.parametrize("typed", QUICK + LIGHT)
def test_nothing_heavy_is_imported(typed: str, tmp_path: Path) -> None:
    modules = probe(COMMAND, typed, tmp_path)["modules"]
    assert "turnwise.cli.main" in modules
    assert [name for name in HEAVY if name in modules] == []


def test_a_list_of_environments_imports_none_of_them(tmp_path: Path) -> None:
    modules = probe(COMMAND, "envs", tmp_path)["modules"]
    assert [name for name in modules if name.startswith("turnwise.envs.")] == [
        "turnwise.envs.catalogue",
        "turnwise.envs.new",
    ]


@pytest.mark.parametrize("typed", QUICK)
def test_the_answer_takes_less_than_half_a_second(typed: str, tmp_path: Path) -> None:
    """At the best of five. A busy machine takes longer for everything: there, twice what the libraries alone take."""
    costs, libraries = [], []
    for _ in range(5):
        costs.append(probe(COMMAND, typed, tmp_path)["cpu_s"])
        if costs[-1] < 0.5:
            return
        libraries.append(probe(LIBRARIES, "", tmp_path)["cpu_s"])
    assert min(costs) < 2 * min(libraries)


def test_the_probe_would_notice_torch(tmp_path: Path) -> None:
    assert "torch" in probe(COMMAND, "train frozen_lake --dry-run", tmp_path)["modules"]


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
