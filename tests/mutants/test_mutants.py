"""The list of mutants applies to the source, and the runner distinguishes killed mutants from survivors."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from mutant_for_tests import DoesNotApplyError, Mutant
from mutant_list import MUTANTS
from run_mutants import HOW_TO_FIX, check, make_overlay

FEWEST = 200
PACKAGES = ("algos", "data", "training", "rollout", "render", "rewards")

SOURCE = """
def double(number):
    return 2 * number


def half(number):
    return number / 2
"""
TESTS = """
from small.numbers import double


def test_double():
    assert double(3) == 6
"""


def mutant(**changes: str) -> Mutant:
    fields = {"file": "numbers.py", "within": "", "what": "halves", "before": "2 * number", "after": "number"}
    return Mutant(**(fields | changes), tests=("test_numbers.py",))  # type: ignore[arg-type]


def test_every_mutant_applies_to_the_source() -> None:
    problems = check(MUTANTS)
    assert not problems, "\n".join([*problems, f"In tests/mutants/mutants_in_*.py: {HOW_TO_FIX}."])


def test_list_covers_the_packages_of_training() -> None:
    packages = Counter(each.file.partition("/")[0] for each in MUTANTS)
    assert len(MUTANTS) >= FEWEST
    assert all(packages[name] >= 15 for name in PACKAGES), packages
    assert len({each.name for each in MUTANTS}) == len(MUTANTS), "two mutants have the same name"


def test_mutant_replaces_exactly_one_occurrence() -> None:
    assert mutant().apply(SOURCE) == SOURCE.replace("2 * number", "number")
    assert mutant(before="/ 2", after="/ 3", within="half").apply(SOURCE) == SOURCE.replace("/ 2", "/ 3")
    for wrong, why in (
        ({"before": "number"}, "occurs 4 times in numbers.py, not once"),
        ({"before": "3 * number"}, "occurs 0 times"),
        ({"before": "number", "within": "half"}, "occurs 2 times in half in numbers.py"),
        ({"within": "third"}, "0 functions and classes are called third"),
        ({"after": "2  *  number"}, "changes nothing"),
        ({"after": "2 *"}, "not Python"),
    ):
        with pytest.raises(DoesNotApplyError, match=why):
            mutant(**wrong).apply(SOURCE)


def test_overlay_holds_the_mutated_file_and_links_to_all_others(tmp_path: Path) -> None:
    source = tmp_path / "package"
    (source / "inner").mkdir(parents=True)
    for name in ("top.py", "inner/numbers.py", "inner/other.py"):
        (source / name).write_text(SOURCE)
    overlay = make_overlay(source, mutant(file="inner/numbers.py"), tmp_path / "overlay") / "package"
    assert (overlay / "inner/numbers.py").read_text() == SOURCE.replace("2 * number", "number")
    assert (source / "inner/numbers.py").read_text() == SOURCE
    assert (overlay / "top.py").is_symlink() and (overlay / "inner/other.py").is_symlink()
    assert not (overlay / "inner").is_symlink() and not (overlay / "inner/numbers.py").is_symlink()


RUN = """
import sys
from pathlib import Path

from mutant_for_tests import Mutant
from run_mutants import Runner, preload, run_all

preload(("pytest", "hypothesis"))

def mutant(what, before, after):
    return Mutant(file="numbers.py", within="", what=what, before=before, after=after, tests=("test_numbers.py",))

mutants = [
    mutant("wrong factor", "2 * number", "3 * number"),
    mutant("no test looks", "number / 2", "number / 3"),
    mutant("cannot be imported", "def half", "import nowhere\\ndef half"),
    mutant("dies", "2 * number", "__import__('os')._exit(3)"),
]
root = Path(sys.argv[1])
sys.exit(not run_all(mutants[: int(sys.argv[2])], Runner(root / "small", root / "tests", jobs=2), print))
"""


def run_small(folder: Path, count: int, tests: str = TESTS) -> tuple[int, str]:
    """Run the first mutants of a small package in a new process. Return its status and output."""
    for name, text in (("small/__init__.py", ""), ("small/numbers.py", SOURCE), ("tests/test_numbers.py", tests)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), str(count)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_runner_accepts_mutants_that_fail_a_test(tmp_path: Path) -> None:
    status, output = run_small(tmp_path, 1)
    assert status == 0 and "1 killed, 0 survived, 0 error" in output
    assert "test_numbers.py::test_double" in output


def test_runner_reports_survivors_and_counts_no_error_as_killed(tmp_path: Path) -> None:
    status, output = run_small(tmp_path, 4)
    assert status == 1 and "1 killed, 1 survived, 2 error" in output
    summary = output.rpartition("mutants in")[2]
    assert "no test looks" in summary and "wrong factor" not in summary
    assert "test_numbers.py cannot be collected" in summary and "ended with status 3" in summary
    assert (tmp_path / "small/numbers.py").read_text() == SOURCE


def test_runner_stops_where_tests_fail_without_a_mutation(tmp_path: Path) -> None:
    status, output = run_small(tmp_path, 1, TESTS.replace("== 6", "== 7"))
    assert status == 1 and "FAILS without a mutation" in output and "killed" not in output
