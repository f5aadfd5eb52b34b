"""The contract of `Env` over every environment of the catalogue's generators, and over environments that break it."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from generators_for_tests import CASES, Case

import turnwise as tw
from turnwise.core.messages import assistant
from turnwise.envs.adapters.package_envs import GymnasiumEnv, PackageEnv, ReasoningGymEnv, TextArenaEnv, TextWorldEnv
from turnwise.envs.registry import spec_of
from turnwise.envs.seeds import seed_for
from turnwise.testing import check_env


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_environment_keeps_the_contract(case: Case) -> None:
    runner, rng = case.make("train", 0), random.Random(0)
    asyncio.run(runner.start())
    replies = [runner.random_answer(rng) or "<answer>1</answer>" for _ in range(8)]
    check_env(lambda: case.make("train", 0), replies)


@pytest.mark.parametrize(
    "cls", [GymnasiumEnv, ReasoningGymEnv, TextArenaEnv, TextWorldEnv], ids=lambda cls: cls.__name__
)
def test_adapter_keeps_the_contract(cls: type[PackageEnv], optional_part: Callable[..., None]) -> None:
    spec = spec_of(cls)
    if spec.install_command:
        optional_part(f"a package is missing: {spec.install_command}", *cls.needs)
    task = tw.Task(env=spec.name, seed=seed_for("train", 0), params=spec.check_params({}))
    runner, rng = spec.make(task), random.Random(0)
    asyncio.run(runner.start())
    replies = [runner.env.random_answer(rng) or "<answer>7</answer>" for _ in range(4)]
    check_env(lambda: spec.make(task), replies)


class Coins:
    """Keeps the contract: the smallest `Env`."""

    def __init__(self, task: tw.Task, rng: random.Random, **changes: Any) -> None:
        """`changes`: fields of every result, to break a rule."""
        self.side, self.changes = rng.choice(("heads", "tails")), changes

    async def start(self) -> tw.Observation:
        return tw.Observation(messages=(tw.user("Heads or tails?"),))

    async def step(self, action: tw.Message) -> tw.StepResult:
        right = action.content == self.side
        over = tw.StepResult(
            messages=(tw.user("yes" if right else "no"),), reward=float(right), terminated=right, success=right
        )
        return replace(over, **self.changes)

    async def close(self) -> None:
        pass


class SpeaksForTheAgent(Coins):
    async def start(self) -> tw.Observation:
        return tw.Observation(messages=(assistant("Hi."),))


class DrawsOutsideItsStream(Coins):
    async def start(self) -> tw.Observation:
        return tw.Observation(messages=(tw.user(f"Heads or tails? {random.random()}"),))


class SharesState(Coins):
    steps = 0

    async def step(self, action: tw.Message) -> tw.StepResult:
        SharesState.steps += 1
        return tw.StepResult(messages=(tw.user(str(SharesState.steps)),))


class RaisesOnNonsense(Coins):
    async def step(self, action: tw.Message) -> tw.StepResult:
        {"heads": 1, "tails": 0}[action.content]
        return await super().step(action)


def make(cls: type[Coins], **changes: Any) -> Coins:
    return cls(tw.Task(env="coins", seed=0), random.Random(0), **changes)


def test_smallest_env_keeps_the_contract() -> None:
    check_env(lambda: make(Coins), ["heads", "tails"])
    spec = spec_of(Coins)
    check_env(lambda: spec.make(tw.Task(env=spec.name, seed=seed_for("train", 0))), ["heads", "tails"])


@pytest.mark.parametrize(
    ("cls", "rule"),
    [
        (SpeaksForTheAgent, "only the agent writes assistant"),
        (DrawsOutsideItsStream, "equal episodes"),
        (SharesState, "equal episodes"),
    ],
)
def test_check_env_names_the_broken_rule(cls: type[Coins], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_env(lambda: make(cls), ["heads", "tails"])


def test_check_env_tries_replies_that_cannot_be_read() -> None:
    with pytest.raises(KeyError):
        check_env(lambda: make(RaisesOnNonsense), ["heads", "tails"])


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"messages": (), "terminated": False, "success": False}, "has a message for the agent"),
        ({"terminated": False, "success": True}, "ends the episode is a success"),
        ({"reward": float("nan")}, "finite number, not nan"),
        ({"info": {"rewards": {"style": float("inf")}}}, "components of the reward"),
    ],
)
def test_check_env_names_the_broken_rule_of_results(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_env(lambda: make(Coins, **changes), ["heads", "tails"])
