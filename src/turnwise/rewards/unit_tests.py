"""What an agent's code gives for some expressions, in a sandbox of its own; what that is worth is decided outside.

Code can forge all that its session says, so the session is told what to calculate and never what should come out.
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

from turnwise.config.section import Positive
from turnwise.core.errors import UserError
from turnwise.rewards.per_loop import PerLoop
from turnwise.rewards.rubric import BuiltInReward, Submission, get_column, select_text
from turnwise.sandbox.types import RunResult

MARK = "tested:"
MAX_VALUE_CHARS = 4000
"""Characters of one value, written out."""
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
    """A session of the sandbox."""

    async def run(self, code: str) -> RunResult: ...


@dataclass(frozen=True, slots=True)
class ExpressionResult:
    """What one expression gave: a value as Python writes it, or what went wrong."""

    fine: bool
    text: str

    def is_value(self, wanted: object, *, same_type: bool, as_json: bool = False) -> bool:
        """Compared as values of Python's own kinds: what a class of the agent's would claim to equal counts nothing.

        `same_type`: 1 is not 1.0, nor True. `as_json`: `wanted` comes from JSON, which knows no tuples.
        """
        if not self.fine:
            return False
        try:
            value = ast.literal_eval(self.text)
            value = plain_json(value) if as_json else value
            return bool(value == wanted) and (not same_type or type(value) is type(wanted))
        except Exception:  # the text is the agent's: whatever it makes this raise, it is no value
            return False


NO_RESULT = ExpressionResult(False, "nothing")


async def evaluate_expressions(
    session: CodeSession, code: str, expressions: Sequence[str]
) -> tuple[list[ExpressionResult], RunResult]:
    """The code, then every expression after it; those that it never came to gave nothing."""
    harness = HARNESS.format(cases=json.dumps(list(expressions)), mark=MARK, longest=MAX_VALUE_CHARS)
    result = await session.run(code + "\n" + harness)
    return _given(result.output, len(expressions)), result


def _given(output: str, count: int) -> list[ExpressionResult]:
    """The last lines count: code may print what it likes before."""
    lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)][-count:]
    found = [_read(line) for line in lines]
    return found + [NO_RESULT] * (count - len(found))


def _read(line: str) -> ExpressionResult:
    try:
        fine, text = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return NO_RESULT
    if (
        not isinstance(text, str) or len(text) > MAX_VALUE_CHARS
    ):  # not what the harness writes; reading it could take long
        return NO_RESULT
    return ExpressionResult(fine is True, text)


def plain_json(value: Any) -> Any:
    """As JSON has it, which knows no tuples."""
    if isinstance(value, list | tuple):
        return [plain_json(each) for each in value]
    if isinstance(value, dict):
        return {str(name): plain_json(each) for name, each in value.items()}
    return value


MAX_TESTS = 500


@dataclass(frozen=True, slots=True)
class ExpressionCase:
    expression: str
    wanted: Any
    as_json: bool = False
    """The wanted value comes from JSON, which knows no tuples."""
    inside: bool = False
    """Decided where the code runs, which could claim the outcome: only whether it held comes out."""

    def passed(self, given: ExpressionResult) -> bool:
        return given.is_value(self.wanted, same_type=False, as_json=self.as_json)


def parse_tests(tests: Any, code: str, function: str, column: str) -> tuple[str, list[ExpressionCase]]:
    """What runs before the tests, and the tests. A UserError where the column holds none."""
    texts = [tests] if isinstance(tests, str) else tests
    if not isinstance(texts, list) or not texts:
        raise UserError(f'the column "{column}" holds no tests: give Python text, or a list')
    if all(isinstance(each, str) for each in texts):
        setup, cases = _from_python("\n".join(texts), column)
    elif all(isinstance(each, dict) and {"input", "output"} <= each.keys() for each in texts):
        name = function or _last_function(code)
        setup, cases = "", [ExpressionCase(_call(name, each["input"]), each["output"], as_json=True) for each in texts]
    else:
        raise UserError(f'the column "{column}" holds other things than tests: give texts, or {{"input", "output"}}')
    if not 0 < len(cases) <= MAX_TESTS:
        raise UserError(f'the column "{column}" holds {len(cases)} tests: give 1 to {MAX_TESTS}')
    return setup, cases


def _from_python(text: str, column: str) -> tuple[str, list[ExpressionCase]]:
    """Asserts and test functions are tests; what else stands there runs before them."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f'the column "{column}" is no Python ({error}): mend the tests of that row') from error
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
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):  # code that claims True of everything fails
        return ExpressionCase(f"bool({ast.unparse(test.operand)})", False, inside=True)
    return ExpressionCase(f"bool({ast.unparse(test)})", True, inside=True)


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


if TYPE_CHECKING:
    from turnwise.tools.python import PythonTool

BLOCK = re.compile(r"```[ \t]*(?:(?:python|py)[ \t]*)?\n(.*?)```", re.DOTALL | re.IGNORECASE)
MAX_OUTPUT_CHARS = 400_000
"""Characters of a run: what a hundred values take."""


def extract_code(answer: str) -> str:
    """The last fenced block, or all of it where there is none."""
    blocks = BLOCK.findall(answer)
    return str(blocks[-1] if blocks else answer)


class UnitTests(BuiltInReward):
    """The share of the row's tests that the answer's code passes, 0 to 1; each run in a fresh sandbox.

    `assert CALL == VALUE` and tests of input and output are compared outside of it, where the code cannot reach; of
    other tests the code could forge the outcome, as it shares their interpreter.
    """

    against: str = "tests"
    """The column with the tests: Python text of asserts and test functions, a list of such texts, or a list of
    {"input": arguments, "output": value}."""
    function: str = ""
    """The function that inputs go to; empty: the last one that the answer defines."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Of all tests of one answer together."""
    memory_mb: Annotated[int, Field(ge=64)] = 1024
    concurrency: Positive = 16
    """Answers that are tested at the same time."""

    def can_be_forged(self, row: Mapping[str, Any]) -> bool:
        """Whether code could claim to pass a test of this row that it fails."""
        _, cases = parse_tests(get_column(row, self.against), "", self.function, self.against)
        return any(case.inside for case in cases)

    async def score(self, answered: Submission) -> float:
        code = extract_code(select_text(answered, "answer"))
        setup, cases = parse_tests(get_column(answered.row, self.against), code, self.function, self.against)
        tool, gate = _sandbox(self.timeout_s, self.memory_mb, self.concurrency)
        async with gate.get():
            session = await tool.session(0)
            try:
                given, _ = await evaluate_expressions(session, f"{code}\n{setup}", [case.expression for case in cases])
            finally:
                session.close()
        return sum(map(ExpressionCase.passed, cases, given)) / len(cases)


@lru_cache(maxsize=8)
def _sandbox(timeout_s: float, memory_mb: int, concurrency: int) -> tuple["PythonTool", PerLoop[asyncio.Semaphore]]:
    """One for all answers under equal limits, started when the first is tested."""
    from turnwise.tools.python import PythonTool, SandboxLimits

    limits: Any = SandboxLimits(timeout_s=timeout_s, memory_mb=memory_mb, output_chars=MAX_OUTPUT_CHARS)
    return PythonTool(limits), PerLoop(lambda: asyncio.Semaphore(concurrency))
