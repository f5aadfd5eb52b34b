"""No test asserts a duration, which would fail on a slow or busy machine.

Tests assert the cause of a duration instead: executed lines (`count_lines`), imported modules, calls. `wait_until`
waits with a guard; `benchmarks/` measures speeds.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sources_for_tests import parse_file

HERE = Path(__file__).parent
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "getrusage", "times"}
"""Functions of `time`, `resource` and `os`."""


def reads_a_clock(node: ast.AST, names: set[str]) -> bool:
    """Return whether the node calls a clock or uses a name computed from one."""
    for each in ast.walk(node):
        called = each.func if isinstance(each, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in CLOCKS:
            owner = called.value
            if isinstance(owner, ast.Name) and owner.id in ("time", "resource", "os"):
                return True
        if isinstance(called, ast.Name) and called.id in CLOCKS - {"time", "times"}:
            return True
        if isinstance(each, ast.Name) and each.id in names:
            return True
    return False


def asserted_durations(tree: ast.Module) -> Iterator[int]:
    """Return the lines of asserts that compare measured times."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or not reads_a_clock(function, set()):
            continue
        names: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and reads_a_clock(node.value, set()):
                names |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and reads_a_clock(node.test, names):
                yield node.lineno


@pytest.mark.parametrize(
    "lines",
    [
        ["began = time.monotonic()", "work()", "assert time.monotonic() - began < 5"],
        ["env, start = make(), perf_counter()", "assert elapsed(start) < 1"],
        ["took = time.process_time() - began", "assert took / 30 < 0.02"],
    ],
)
def test_asserted_durations_finds_them(lines: list[str]) -> None:
    body = "".join(f"    {line}\n" for line in lines)
    assert list(asserted_durations(ast.parse(f"def test_it():\n{body}"))) == [len(lines) + 1]


def test_no_test_asserts_a_duration() -> None:
    names = re.compile(rf"\b({'|'.join(CLOCKS)})\(")  # most files read no clock and need not be parsed
    files = [file for file in sorted(HERE.rglob("*.py")) if names.search(file.read_text(encoding="utf-8"))]
    found = [f"{file.relative_to(HERE)}:{line}" for file in files for line in asserted_durations(parse_file(file))]
    assert found == []
