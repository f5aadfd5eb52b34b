"""Answers that are code: the share of tests that pass, run in the sandbox."""

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from turnwise.config.section import Positive
from turnwise.rewards.code_cases import run_cases
from turnwise.rewards.parts.case_forms import Case, read_tests
from turnwise.rewards.parts.part import BuiltInPart
from turnwise.rewards.parts.texts import column, looked_at
from turnwise.rewards.per_loop import PerLoop
from turnwise.rewards.rubric import Answered

if TYPE_CHECKING:
    from turnwise.tools.python import PythonTool

BLOCK = re.compile(r"```[ \t]*(?:(?:python|py)[ \t]*)?\n(.*?)```", re.DOTALL | re.IGNORECASE)
OUTPUT = 400_000
"""Characters of a run: what a hundred values take."""


def code_of(answer: str) -> str:
    """The last fenced block, or all of it where there is none."""
    blocks = BLOCK.findall(answer)
    return str(blocks[-1] if blocks else answer)


class UnitTests(BuiltInPart):
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
        _, cases = read_tests(column(row, self.against), "", self.function, self.against)
        return any(case.inside for case in cases)

    async def score(self, answered: Answered) -> float:
        code = code_of(looked_at(answered, "answer"))
        setup, cases = read_tests(column(answered.row, self.against), code, self.function, self.against)
        tool, gate = _sandbox(self.timeout_s, self.memory_mb, self.concurrency)
        async with gate.get():
            session = await tool.session(0)
            try:
                given, _ = await run_cases(session, f"{code}\n{setup}", [case.expression for case in cases])
            finally:
                session.close()
        return sum(map(Case.passed, cases, given)) / len(cases)


@lru_cache(maxsize=8)
def _sandbox(timeout_s: float, memory_mb: int, concurrency: int) -> tuple["PythonTool", PerLoop[asyncio.Semaphore]]:
    """One for all answers under equal limits, started when the first is tested."""
    from turnwise.tools.python import PythonTool, SandboxLimits

    limits: Any = SandboxLimits(timeout_s=timeout_s, memory_mb=memory_mb, output_chars=OUTPUT)
    return PythonTool(limits), PerLoop(lambda: asyncio.Semaphore(concurrency))
