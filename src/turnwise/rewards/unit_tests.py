"""Reward for code: the share of unit tests that it passes, run in the sandbox.

Code can forge everything that its session prints, so the session gets the expressions to evaluate and never the
expected values; results are compared outside.
"""

import ast
import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field

from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import UserError
from turnwise.rewards.rubric import BuiltInReward, Submission, get_column, select_text
from turnwise.sandbox.types import RunResult
from turnwise.settings.section import Positive

MARK = "tested:"
MAX_VALUE_CHARS = 4000
"""Length of the repr of one value, at most."""
HARNESS = """
import json as _json

def _plain(value, depth=0):
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        value = value.tolist()
    if depth > 20:
        return value
    if isinstance(value, dict):
        return {{_plain(name, depth + 1): _plain(each, depth + 1) for name, each in value.items()}}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(_plain(each, depth + 1) for each in value)
    return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), value)

for _case in _json.loads({cases!r}):
    try:
        _given = repr(_plain(eval(_case)))[:{longest}]
    except Exception as _error:
        print({mark!r} + _json.dumps([False, type(_error).__name__ + ": " + str(_error)[:80]]))
    else:
        print({mark!r} + _json.dumps([True, _given]))
"""


class CodeSession(Protocol):
    """A sandbox session."""

    async def run(self, code: str) -> RunResult: ...


@dataclass(frozen=True, slots=True)
class ExpressionResult:
    """Result of one expression: the repr of its value, or an error."""

    fine: bool
    text: str

    def is_value(self, expected: object, *, same_type: bool, as_json: bool = False) -> bool:
        """Compare as plain Python values, so that a class with its own __eq__ cannot claim equality.

        `same_type`: 1 is neither 1.0 nor True. `as_json`: `expected` comes from JSON, which has no tuples.
        """
        if not self.fine:
            return False
        try:
            value = ast.literal_eval(self.text)
            value = plain_json(value) if as_json else value
            return bool(value == expected) and (not same_type or type(value) is type(expected))
        except Exception:  # the agent wrote the text: whatever this raises, it is not a value
            return False


NO_RESULT = ExpressionResult(False, "nothing")


async def evaluate_expressions(
    session: CodeSession, code: str, expressions: Sequence[str]
) -> tuple[list[ExpressionResult], RunResult]:
    """Run the code, then evaluate the expressions. Expressions that were not reached have no result."""
    harness = HARNESS.format(cases=json.dumps(list(expressions)), mark=MARK, longest=MAX_VALUE_CHARS)
    result = await session.run(code + "\n" + harness)
    return _read_results(result.output, len(expressions)), result


def _read_results(output: str, count: int) -> list[ExpressionResult]:
    """Read the last lines, since code may print anything before."""
    lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)][-count:]
    results = [_read(line) for line in lines]
    return results + [NO_RESULT] * (count - len(results))


def _read(line: str) -> ExpressionResult:
    try:
        fine, text = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return NO_RESULT
    if (
        not isinstance(text, str) or len(text) > MAX_VALUE_CHARS
    ):  # not written by the harness; parsing it could take long
        return NO_RESULT
    return ExpressionResult(fine is True, text)


def plain_json(value: Any) -> Any:
    """Convert tuples to lists and keys to text, as in JSON."""
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain_json(item) for name, item in value.items()}
    return value


MAX_TESTS = 500


@dataclass(frozen=True, slots=True)
class ExpressionCase:
    expression: str
    expected: Any
    as_json: bool = False
    """The expected value comes from JSON, which has no tuples."""
    inside: bool = False
    """Evaluated to a bool inside the sandbox, where the code could forge it."""

    def passed(self, result: ExpressionResult) -> bool:
        return result.is_value(self.expected, same_type=False, as_json=self.as_json)


def parse_tests(tests: Any, code: str, function: str, column: str) -> tuple[str, list[ExpressionCase]]:
    """Return the set-up code and the tests. Raises UserError if the column has none."""
    texts = [tests] if isinstance(tests, str) else tests
    if not isinstance(texts, list) or not texts:
        raise UserError(f'The column "{column}" holds no tests: give Python code or a list.')
    if all(isinstance(text, str) for text in texts):
        setup, cases = _from_python("\n".join(texts), column)
    elif all(isinstance(case, dict) and {"input", "output"} <= case.keys() for case in texts):
        name = function or _last_function(code)
        setup, cases = "", [ExpressionCase(_call(name, case["input"]), case["output"], as_json=True) for case in texts]
    else:
        raise UserError(
            f'The column "{column}" holds values that are not tests: give Python code or {{"input", "output"}}.'
        )
    if not 0 < len(cases) <= MAX_TESTS:
        raise UserError(f'The column "{column}" holds {len(cases)} tests: give 1 to {MAX_TESTS}')
    return setup, cases


def _from_python(text: str, column: str) -> tuple[str, list[ExpressionCase]]:
    """Asserts and test functions are tests; everything else is set-up."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f'The column "{column}" is not valid Python ({error}): fix the tests of that row.') from error
    others = [node for node in body if not isinstance(node, ast.Assert)]
    return "\n".join(map(ast.unparse, others)), list(_cases(body))


def _cases(body: list[ast.stmt]) -> Iterator[ExpressionCase]:
    for node in body:
        if isinstance(node, ast.Assert):
            yield _assertion(node.test)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield ExpressionCase(f"({node.name}(), True)[1]", True, inside=True)


def _assertion(test: ast.expr) -> ExpressionCase:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        try:
            return ExpressionCase(ast.unparse(test.left), ast.literal_eval(test.comparators[0]))
        except ValueError:
            pass
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):  # fails objects that claim to be true
        return ExpressionCase(f"bool({ast.unparse(test.operand)})", False, inside=True)
    return ExpressionCase(f"bool({ast.unparse(test)})", True, inside=True)


def _last_function(code: str) -> str:
    try:
        functions = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        functions = []
    return functions[-1] if functions else "f"


def _call(name: str, arguments: Any) -> str:
    """Call with a list as positional arguments, a table as keyword arguments, anything else as the only argument."""
    if isinstance(arguments, dict):
        return f"{name}(**{arguments!r})"
    return f"{name}({', '.join(map(repr, arguments))})" if isinstance(arguments, list) else f"{name}({arguments!r})"


if TYPE_CHECKING:
    from turnwise.tools.python import PythonTool

BLOCK = re.compile(r"```[ \t]*(?:(?:python|py)[ \t]*)?\n(.*?)```", re.DOTALL | re.IGNORECASE)
MAX_OUTPUT_CHARS = 400_000
"""Characters of output per run, enough for a hundred values."""


def extract_code(answer: str) -> str:
    """Return the last fenced code block, or the whole answer if there is none."""
    blocks = BLOCK.findall(answer)
    return str(blocks[-1] if blocks else answer)


class UnitTests(BuiltInReward):
    """Share of the row's tests that the answer's code passes, 0 to 1, in a fresh sandbox.

    `assert CALL == VALUE` and input/output tests are compared outside of the sandbox. Other tests run in the same
    interpreter as the code, which could forge their outcome.
    """

    against: str = "tests"
    """Column with the tests: Python code with asserts and test functions, a list of such code, or a list of
    {"input": arguments, "output": value}."""
    function: str = ""
    """Function that input/output tests call; empty: the last one that the answer defines."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Time limit of all tests of one answer together, in seconds."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Memory limit of one sandbox, in MB."""
    concurrency: Positive = 16
    """Answers that are tested concurrently, at most."""

    def can_be_forged(self, row: Mapping[str, Any]) -> bool:
        """Return whether code could forge the outcome of a test in this row."""
        _, cases = parse_tests(get_column(row, self.against), "", self.function, self.against)
        return any(case.inside for case in cases)

    async def score(self, submission: Submission) -> float:
        code = extract_code(select_text(submission, "answer"))
        setup, cases = parse_tests(get_column(submission.row, self.against), code, self.function, self.against)
        tool, gate = _sandbox(self.timeout_s, self.memory_mb, self.concurrency)
        async with gate.get():
            session = await tool.session(0)
            try:
                results, _ = await evaluate_expressions(
                    session, f"{code}\n{setup}", [case.expression for case in cases]
                )
            finally:
                session.close()
        return sum(map(ExpressionCase.passed, cases, results)) / len(cases)


@lru_cache(maxsize=8)
def _sandbox(timeout_s: float, memory_mb: int, concurrency: int) -> tuple["PythonTool", PerLoop[asyncio.Semaphore]]:
    """Return the sandbox that all answers with equal limits share. It starts with the first answer."""
    from turnwise.tools.python import PythonTool, SandboxLimits

    limits: Any = SandboxLimits(timeout_s=timeout_s, memory_mb=memory_mb, output_chars=MAX_OUTPUT_CHARS)
    return PythonTool(limits), PerLoop(lambda: asyncio.Semaphore(concurrency))
