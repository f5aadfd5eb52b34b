"""Runs a handed-in function on the tests' inputs in a sandbox of its own; what it gave is compared outside."""

import ast
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.envs.code_tests.pipelines import Exercise
from turnwise.tools.python import PythonTool
from turnwise.tools.tool import ToolResult

MARK = "tested:"
HARNESS = """
import json as _json
for _case in _json.loads({cases!r}):
    try:
        _given = f(_case)
    except Exception as _error:
        _given = None
        print({mark!r} + _json.dumps([False, type(_error).__name__ + ": " + str(_error)[:80]]))
    else:
        try:
            print({mark!r} + _json.dumps([True, repr(_given)[:4000]]))
        except Exception as _error:
            print({mark!r} + _json.dumps([False, "a result that cannot be shown"]))
"""


class Handed(Protocol):
    """What the environment shares: its exercise, and how many tries are left."""

    exercise: Exercise

    def tried(self, share: float) -> tuple[bool, float]: ...


class JudgeTool(PythonTool):
    """The tool `python` of this environment: code is handed in, not just run."""

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["JudgeSession"]:  # type: ignore[override]
        yield JudgeSession(self, seed, state)


@dataclass(slots=True)
class JudgeSession:
    tool: JudgeTool
    seed: int
    env: Handed

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        exercise = self.env.exercise
        harness = HARNESS.format(cases=json.dumps(exercise.tests), mark=MARK)
        session = await self.tool.session(self.seed)  # a new one each time: nothing of an earlier try is left
        try:
            result = await session.run(arguments["code"] + "\n" + harness)
        finally:
            session.close()
        given = _given(result.output, len(exercise.tests))
        passed = [_matches(value, exercise.run(list(case))) for value, case in zip(given, exercise.tests, strict=True)]
        share = sum(passed) / len(passed)
        over, reward = self.env.tried(share)
        text = _told(exercise, given, passed, result.error)
        return ToolResult(text=text, failed=share < 1, reward=reward, over=over, success=share == 1)


def _given(output: str, count: int) -> list[tuple[bool, str]]:
    """What the function gave for each input, as far as it came. The last lines count: code may print what it likes."""
    lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)][-count:]
    found: list[tuple[bool, str]] = []
    for line in lines:
        try:
            fine, text = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            fine, text = False, "nothing"
        found.append((fine is True, str(text)))
    return found + [(False, "nothing")] * (count - len(found))


def _matches(given: tuple[bool, str], wanted: object) -> bool:
    """Compared as values of Python's own kinds: what a class of the agent's would claim to equal counts for nothing."""
    if not given[0]:
        return False
    try:
        value = ast.literal_eval(given[1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return type(value) is type(wanted) and value == wanted


def _told(exercise: Exercise, given: list[tuple[bool, str]], passed: list[bool], error: str | None) -> str:
    """Of hidden tests only how many pass: their answers are not the agent's to see."""
    lines = [f"{sum(passed)} of {len(passed)} tests pass."]
    for case, (_, text), fine in zip(exercise.shown, given, passed, strict=False):
        if not fine:
            lines.append(f"f({case}) gave {text[:200]}, expected {exercise.run(list(case))!r}")
    if error and not any(passed):
        lines.append(error)
    return "\n".join(lines)
