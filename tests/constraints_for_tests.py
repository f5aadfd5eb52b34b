"""Constraints, and engines over the untrained tiny model that enforce them."""

import asyncio
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

import pytest

from episodes_for_tests import renderer
from turnwise.core.constraint import Constraint
from turnwise.core.messages import user
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Status, Trajectory, Turn
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.tiny import tiny_model

SCHEMA = {
    "type": "object",
    "properties": {
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "colour": {"enum": ["red", "blue", "green"]},
        "name": {"type": "string", "maxLength": 6},
    },
    "required": ["size", "colour", "name"],
    "additionalProperties": False,
}
STYLE = {"x-guidance": {"whitespace_flexible": False}}


@pytest.fixture(autouse=True)
def require_llguidance(optional_part: Callable[[str], NoReturn]) -> None:
    """For test files that import this fixture."""
    if find_spec("llguidance") is None:
        optional_part("llguidance is not installed")


def constraint_of(schema: dict[str, Any]) -> Constraint:
    return Constraint(grammar=f"start: %json {json.dumps(schema | STYLE)}")


def trained_model() -> Any:
    model = tiny_model()
    model.set_attn_implementation(ATTENTION)
    return model


def make_engine(model: Any, *, paged: bool = False, **settings: Any) -> NativeEngine:
    common = {"slots": 8, "stop_ids": renderer().stop_ids, "decode": renderer().decode}
    runner = build_paged_runner(model, **common, **{"longest": 512} | settings) if paged else None
    return NativeEngine(model, **common, runner=runner, grammars=renderer().grammars)


def prompt(number: int) -> list[int]:
    return renderer().start([user(f"Describe number {number}, please.")])


def sample_all(engine: NativeEngine, samplings: Sequence[Sampling], prompts: Sequence[int]) -> list[Completion]:
    """Sample a turn for each, together. Equal prompts are one group."""

    async def one(member: int, sampling: Sampling, number: int) -> Completion:
        key = EpisodeKey(run_seed=0, round=0, task=Task(env="test", seed=number), member=member)
        async with engine.open(key) as session:
            return await session.generate(prompt(number), sampling)

    async def run() -> list[Completion]:
        numbered = enumerate(zip(samplings, prompts, strict=True))
        return list(await asyncio.gather(*(one(member, each, number) for member, (each, number) in numbered)))

    return asyncio.run(run())


def trajectory_of(completion: Completion, number: int, reward: float = 1.0) -> Trajectory:
    turn = Turn(
        context_ids=tuple(prompt(number)),
        extends=False,
        action_ids=completion.ids,
        action_logprobs=completion.logprobs,
        temperature=completion.temperature,
        spans=(),
        message=renderer().parse(completion.ids, completion.stop).message,
        stop=completion.stop,
        reward=reward,
        constraint=completion.constraint,
    )
    task = Task(env="test", seed=number)
    return Trajectory(task=task, member=0, attempt=0, turns=(turn,), status=Status.SUCCEEDED, turn_rewards=(reward,))
