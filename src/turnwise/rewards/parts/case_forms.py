"""The forms in which a row may hold its tests, as expressions to calculate and the values that should come out."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnwise.core.errors import UserError
from turnwise.rewards.code_cases import Given

MOST_TESTS = 500


@dataclass(frozen=True, slots=True)
class Case:
    expression: str
    wanted: Any
    as_json: bool = False
    """The wanted value comes from JSON, which knows no tuples."""
    inside: bool = False
    """Decided where the code runs, which could claim the outcome: only whether it held comes out."""

    def passed(self, given: Given) -> bool:
        return given.is_value(self.wanted, same_type=False, as_json=self.as_json)


def read_tests(tests: Any, code: str, function: str, column: str) -> tuple[str, list[Case]]:
    """What runs before the tests, and the tests. A UserError where the column holds none."""
    texts = [tests] if isinstance(tests, str) else tests
    if not isinstance(texts, list) or not texts:
        raise UserError(f'the column "{column}" holds no tests: give Python text, or a list')
    if all(isinstance(each, str) for each in texts):
        setup, cases = _from_python("\n".join(texts), column)
    elif all(isinstance(each, dict) and {"input", "output"} <= each.keys() for each in texts):
        name = function or _last_function(code)
        setup, cases = "", [Case(_call(name, each["input"]), each["output"], as_json=True) for each in texts]
    else:
        raise UserError(f'the column "{column}" holds other things than tests: give texts, or {{"input", "output"}}')
    if not 0 < len(cases) <= MOST_TESTS:
        raise UserError(f'the column "{column}" holds {len(cases)} tests: give 1 to {MOST_TESTS}')
    return setup, cases


def _from_python(text: str, column: str) -> tuple[str, list[Case]]:
    """Asserts and test functions are tests; what else stands there runs before them."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f'the column "{column}" is no Python ({error}): mend the tests of that row') from error
    others = [node for node in body if not isinstance(node, ast.Assert)]
    return "\n".join(map(ast.unparse, others)), list(_cases(body))


def _cases(body: list[ast.stmt]) -> Iterator[Case]:
    for node in body:
        if isinstance(node, ast.Assert):
            yield _assertion(node.test)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield Case(f"({node.name}(), True)[1]", True, inside=True)


def _assertion(test: ast.expr) -> Case:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        try:
            return Case(ast.unparse(test.left), ast.literal_eval(test.comparators[0]))
        except ValueError:
            pass
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):  # code that claims True of everything fails
        return Case(f"bool({ast.unparse(test.operand)})", False, inside=True)
    return Case(f"bool({ast.unparse(test)})", True, inside=True)


def _last_function(code: str) -> str:
    try:
        found = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = []
    return found[-1] if found else "f"


def _call(name: str, given: Any) -> str:
    """A list is the arguments in order, a table the arguments by name, anything else the only one."""
    if isinstance(given, dict):
        return f"{name}(**{given!r})"
    return f"{name}({', '.join(map(repr, given))})" if isinstance(given, list) else f"{name}({given!r})"
