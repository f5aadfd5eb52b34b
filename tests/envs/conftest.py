"""Shared by the tests of environments: an episode driven by given answers, through the protocol."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from turnwise.core.messages import assistant
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.seeds import seed_for


async def _steps(runner: TextEnvRunner, answers: Sequence[str]) -> list[StepResult]:
    results: list[StepResult] = []
    for answer in answers:
        results.append(await runner.step(assistant(answer)))
        if results[-1].over:
            break
    return results


async def _episode(runner: TextEnvRunner, answers: Sequence[str]) -> tuple[Observation, list[StepResult]]:
    opening = await runner.start()
    results = await _steps(runner, answers)
    await runner.close()
    return opening, results


@pytest.fixture
def episode() -> Callable:
    """episode(runner, answers) -> (observation, step results), until the episode is over."""
    return lambda runner, answers: asyncio.run(_episode(runner, answers))


@pytest.fixture
def steps() -> Callable:
    """steps(runner, answers) -> step results of a runner that has started."""
    return lambda runner, answers: asyncio.run(_steps(runner, answers))


@pytest.fixture
def started() -> Callable:
    """started(name, index, member=..., attempt=..., **params) -> a runner that has started, with its `opening`."""

    def start(name, index=0, member=0, attempt=0, **params):
        task = Task(env=name, seed=seed_for("train", index), params=params)
        runner = load_spec(name).make(task, member=member, attempt=attempt)
        runner.opening = asyncio.run(runner.start())
        return runner

    return start
