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
    "models",
    "train --help",
    "eval --help",
    "export --help",
    "trian",
    "train frozn_lake",
    "train frozen_lake --stpes 3",
    "train frozen_lake --algo.clip_hi 3",
)

PROBE = """
import json, resource, sys
from turnwise.cli.main import main
code = main(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_SELF)
with open(sys.argv[1], "w") as file:
    json.dump({"modules": list(sys.modules), "cpu_s": used.ru_utime + used.ru_stime, "code": code}, file)
"""


def probe(typed: str, folder: Path) -> dict[str, Any]:
    """Runs the command line in a new process and tells which modules it imported and what it cost."""
    report = folder / "report.json"
    subprocess.run([sys.executable, "-c", PROBE, str(report), *typed.split()], capture_output=True, check=True)
    answer: dict[str, Any] = json.loads(report.read_text())
    return answer


@pytest.mark.parametrize("typed", QUICK)
def test_nothing_heavy_is_imported_and_the_answer_costs_less_than_half_a_second(typed: str, tmp_path: Path) -> None:
    """Of processor time, Python's own start included, at best of five: a busy machine is no failure."""
    costs = []
    while len(costs) < 5 and min(costs, default=1.0) > 0.5:
        report = probe(typed, tmp_path)
        assert [name for name in HEAVY if name in report["modules"]] == []
        costs.append(report["cpu_s"])
    assert min(costs) < 0.5


def test_the_probe_would_notice_torch(tmp_path: Path) -> None:
    assert "torch" in probe("train frozen_lake --dry-run", tmp_path)["modules"]


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


def test_a_reader_that_goes_away_is_no_complaint() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "turnwise", "train", "--help-all"]
    answer = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (answer.returncode, answer.stderr) == (141, "")
