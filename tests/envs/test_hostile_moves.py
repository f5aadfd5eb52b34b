"""No answer breaks an environment: it is a move, an invalid one or a wrong answer, and never a failure to retry."""

import asyncio
import math
from collections.abc import Callable
from typing import NoReturn

import pytest
from generators_for_tests import CASES, Case

from nasty_answers_for_tests import NASTY
from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.envs.answers import format_answer
from turnwise.sandbox.types import SandboxUnavailable

FIRST = list({case.env: case for case in reversed(CASES)}.values())
"""One of each environment. What is invalid keeps an episode going, so that many answers meet one start state."""


async def _played(case: Case, answers: list[str]) -> list[StepResult]:
    """All of the answers, in as many episodes as it takes."""
    results: list[StepResult] = []
    runner = None
    for index, answer in enumerate(answers):
        if runner is None:
            runner = case.make("train", index)
            await runner.start()
        results.append(await runner.step(assistant(answer)))
        if results[-1].over:
            await runner.close()
            runner = None
    return results


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.env)
def test_nasty_answers_are_scored_by_every_environment(case: Case, optional_part: Callable[..., NoReturn]) -> None:
    answers = [*(format_answer([text]) for text in NASTY), *NASTY]
    try:
        results = asyncio.run(_played(case, answers))
    except SandboxUnavailable as error:
        optional_part(str(error))
    assert len(results) == len(answers)
    assert all(math.isfinite(result.reward) and not result.success for result in results)
