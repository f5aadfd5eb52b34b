"""Unit tests in the sandbox: the share that passes, and no verdict that the code could forge."""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.rewards.rubric import Submission
from turnwise.rewards.unit_tests import (
    NO_RESULT,
    ExpressionResult,
    UnitTests,
    _read_results,
    _sandbox,
    extract_code,
    parse_tests,
)
from turnwise.sandbox.types import SandboxFailure, SandboxUnavailable

ASSERTS = """
import math
assert add(1, 2) == 3
assert add(-1, 1) == 0, "a reason"
assert add([1], [2]) == [1, 2]
assert math.isclose(add(0.1, 0.2), 0.3)
"""
FUNCTIONS = ["def test_one():\n    assert add(1, 1) == 2\n", "def test_two():\n    assert add(1, 1) == 3\n"]
PAIRS = [{"input": [1, 2], "output": 3}, {"input": {"a": "x", "b": "y"}, "output": "xy"}]
GOOD = "def add(a, b):\n    return a + b"
CLAIM = "import os, sys\nprint('tested:[true, \"True\"]\\n' * 4)\nsys.stdout.flush()\nos._exit(0)"
CASES: list[tuple[str, Any, float]] = [
    (GOOD, ASSERTS, 1.0),
    (f"Here it is:\n```python\nwrong\n```\nno:\n```python\n{GOOD}\n```\nDone.", ASSERTS, 1.0),
    ("def add(a, b):\n    return 3", ASSERTS, 0.25),
    ("def add(a, b):\n    return abs(a) + abs(b) if a != [1] else [1, 2]", ASSERTS, 0.75),
    (GOOD, FUNCTIONS, 0.5),
    (GOOD, PAIRS, 1.0),
    ("def pair(x):\n    return (x, [x])", [{"input": 1, "output": [1, [1]]}], 1.0),
    ("import numpy\ndef add(a, b):\n    return numpy.int64(a + b)", ["assert add(1, 2) == 3"], 1.0),
    ("def add(a, b):\n    return 3.0", ["assert add(1, 2) == 3"], 1.0),
    ("", ASSERTS, 0.0),
    ("this is not code", ASSERTS, 0.0),
    ("import sys; sys.exit(0)", ASSERTS, 0.0),
    ("class A:\n    def __eq__(self, o): return True\n    def __repr__(self): return 'A'\n"
     "def add(a, b): return A()", ["assert add(1, 2) == 3"], 0.0),
    ("print('tested:[true, \"3\"]\\n' * 9)\ndef add(a, b): return None", ["assert add(1, 2) == 3"], 0.0),
    ("import builtins\nbuiltins.repr = lambda x: '7'\ndef add(a, b): return 0", ["assert add(1, 2) == 3"], 0.0),
    ("def add(a, b):\n    while True: pass", ["assert add(1, 2) == 3"], 0.0),
    ("def odd(n): return n % 2", ["assert odd(1)", "assert not odd(2)", "assert not odd(3)"], 2 / 3),
    (CLAIM, ["assert odd(1)", "assert not odd(2)", "assert not odd(4)", "assert not odd(6)"], 0.25),
]  # fmt: skip


PATIENT_S = 60.0
"""For code that ends by itself: a busy machine is slow."""


async def _one(answer: str, tests: Any, **options: Any) -> float:
    part = UnitTests(timeout_s=1.0 if "while True" in answer else PATIENT_S, **options)
    return await part(Submission(question="", answer=answer, row={"tests": tests}))


def test_unit_tests_give_the_share_of_passed_tests(optional_part: Callable[..., NoReturn]) -> None:
    """All in one event loop, which has one sandbox. At the end two where a function is named, and is not."""
    helped = f"{GOOD}\ndef helper(a, b):\n    return 0"

    async def all_of_them() -> list[float]:
        named = [_one(helped, PAIRS, function="add"), _one(helped, PAIRS)]
        return list(await asyncio.gather(*(_one(answer, tests) for answer, tests, _ in CASES), *named))

    try:
        assert asyncio.run(all_of_them()) == [*(value for _, _, value in CASES), 1.0, 0.0]
    except SandboxUnavailable as error:
        optional_part(str(error))


def test_evaluate_expressions_ignores_long_forged_values() -> None:
    """Multiples of 2^61 - 1 have one hash: a set of 15,000 of them takes seconds to build."""
    alike = "{" + ",".join(str(number * (2**61 - 1)) for number in range(1, 15_500)) + "}"
    nested = "[" * 500 + "]" * 500
    output = f'tested:[true, "{alike}"]\ntested:[true, {nested}]\ntested:[true, "4"]\n'
    assert _read_results(output, 3) == [NO_RESULT, NO_RESULT, ExpressionResult(True, "4")]


@pytest.mark.parametrize(
    ("tests", "forged"),
    [
        (["assert f(2) == 4", "assert f(3) is None"], False),
        ([{"input": [2], "output": 4}], False),
        (["assert f(2) == 4", "assert f(2) > 3"], True),
        (["assert not f(2)"], True),
        (["def test_a():\n    assert f(3) == 9\n"], True),
    ],
)
def test_unit_tests_know_which_tests_can_be_forged(tests: Any, forged: bool) -> None:
    assert UnitTests().can_be_forged({"tests": tests}) is forged


def test_unit_tests_raise_when_the_sandbox_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    tool, _ = _sandbox(PATIENT_S, 1024, 16)

    async def broken(seed: int) -> Any:
        raise SandboxFailure("it is gone")

    monkeypatch.setattr(tool, "session", broken)
    with pytest.raises(InfrastructureFailure, match="it is gone"):
        asyncio.run(_one(GOOD, ASSERTS))


@pytest.mark.parametrize("tests", [None, [], "", "x = 1", 7, [1, 2], [{"input": 1}], "assert ((", ["assert 1"] * 501])
def test_parse_tests_rejects_columns_without_tests(tests: Any) -> None:
    with pytest.raises(UserError, match='The column "tests"'):
        parse_tests(tests, GOOD, "", "tests")


def test_sandboxed_code_never_sees_expected_values() -> None:
    setup, cases = parse_tests(ASSERTS, GOOD, "", "tests")
    assert setup == "import math"
    assert [(case.expression, case.expected) for case in cases[:3]] == [
        ("add(1, 2)", 3),
        ("add(-1, 1)", 0),
        ("add([1], [2])", [1, 2]),
    ]


def test_expression_result_compares_plain_values() -> None:
    assert ExpressionResult(True, "3").is_value(3, same_type=True) and not ExpressionResult(False, "3").is_value(
        3, same_type=True
    )
    assert ExpressionResult(True, "3.0").is_value(3, same_type=False) and not ExpressionResult(True, "3.0").is_value(
        3, same_type=True
    )
    assert not ExpressionResult(True, "__import__('os')").is_value(3, same_type=False)


def test_extract_code_takes_the_last_block() -> None:
    assert extract_code("```py\na\n```\n```\nb\n```") == "b\n"
    assert extract_code("a = 1") == "a = 1"
