"""The tool `python` of code_tests: run submitted code on the tests' inputs in a fresh sandbox session.

The sandbox only evaluates `f(input)`; the results are compared here, so that the code never sees an expected value.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.envs.code_tests.exercises import Exercise
from turnwise.rewards.unit_tests import ExpressionResult, evaluate_expressions
from turnwise.tools.python import PythonTool
from turnwise.tools.tool import ToolResult


class ExerciseState(Protocol):
    """The part of `CodeTests` that the tool uses."""

    exercise: Exercise

    def record_submission(self, share: float) -> tuple[bool, float]: ...


class SubmissionTool(PythonTool):
    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["SubmissionSession"]:  # type: ignore[override]
        yield SubmissionSession(self, seed, state)


@dataclass(slots=True)
class SubmissionSession:
    tool: SubmissionTool
    seed: int
    env: ExerciseState

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        exercise = self.env.exercise
        session = await self.tool.session(self.seed)  # a new one per submission: nothing carries over
        try:
            expressions = [f"f({case!r})" for case in exercise.tests]
            results, run = await evaluate_expressions(session, arguments["code"], expressions)
        finally:
            session.close()
        passed = [
            result.is_value(exercise.run(list(case)), same_type=True)
            for result, case in zip(results, exercise.tests, strict=True)
        ]
        share = sum(passed) / len(passed)
        over, reward = self.env.record_submission(share)
        text = _feedback(exercise, results, passed, run.error)
        return ToolResult(text=text, failed=share < 1, reward=reward, over=over, success=share == 1)


def _feedback(exercise: Exercise, results: list[ExpressionResult], passed: list[bool], error: str | None) -> str:
    """The number of passed tests and the failures of shown tests; hidden tests are only counted."""
    lines = [f"{sum(passed)} of {len(passed)} tests pass."]
    for case, result, ok in zip(exercise.shown, results, passed, strict=False):
        if not ok:
            lines.append(f"f({case}) gave {result.text[:200]}, expected {exercise.run(list(case))!r}")
    if error and not any(passed):
        lines.append(error)
    return "\n".join(lines)
