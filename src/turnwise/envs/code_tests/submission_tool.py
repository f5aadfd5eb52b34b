"""Runs a handed-in function on the tests' inputs in a sandbox of its own; what it gave is compared outside."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.envs.code_tests.exercises import Exercise
from turnwise.rewards.unit_tests import ExpressionResult, evaluate_expressions
from turnwise.tools.python import PythonTool
from turnwise.tools.tool import ToolResult


class ExerciseState(Protocol):
    """What the environment shares: its exercise, and how many tries are left."""

    exercise: Exercise

    def tried(self, share: float) -> tuple[bool, float]: ...


class SubmissionTool(PythonTool):
    """The tool `python` of this environment: code is handed in, not just run."""

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
        session = await self.tool.session(self.seed)  # a new one each time: nothing of an earlier try is left
        try:
            given, result = await evaluate_expressions(
                session, arguments["code"], [f"f({case!r})" for case in exercise.tests]
            )
        finally:
            session.close()
        passed = [
            value.is_value(exercise.run(list(case)), same_type=True)
            for value, case in zip(given, exercise.tests, strict=True)
        ]
        share = sum(passed) / len(passed)
        over, reward = self.env.tried(share)
        text = _told(exercise, given, passed, result.error)
        return ToolResult(text=text, failed=share < 1, reward=reward, over=over, success=share == 1)


def _told(exercise: Exercise, given: list[ExpressionResult], passed: list[bool], error: str | None) -> str:
    """Of hidden tests only how many pass: their answers are not the agent's to see."""
    lines = [f"{sum(passed)} of {len(passed)} tests pass."]
    for case, value, fine in zip(exercise.shown, given, passed, strict=False):
        if not fine:
            lines.append(f"f({case}) gave {value.text[:200]}, expected {exercise.run(list(case))!r}")
    if error and not any(passed):
        lines.append(error)
    return "\n".join(lines)
