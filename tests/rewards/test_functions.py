"""Rewards of a person's own, as plain functions."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from turnwise.core.errors import Outage, UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.core.trajectory import Status, Stop, Trajectory, Turn
from turnwise.rewards.functions import trajectory_reward

TURN = Turn(
    context_ids=(1,),
    extends=True,
    action_ids=(2,),
    action_logprobs=(-0.5,),
    temperature=1.0,
    spans=(),
    message=assistant(""),
    stop=Stop.EOS,
    reward=0.0,
    invalid=False,
)


def rewarded(given: Any, turns: int = 2) -> tuple[float, ...]:
    trajectory = Trajectory(
        task=Task(env="bandit", seed=1),
        member=0,
        attempt=0,
        turns=(TURN,) * turns,
        status=Status.FAILED,
        turn_rewards=(0.0,) * turns,
    )
    return asyncio.run(trajectory_reward(lambda _: given)(trajectory)).turn_rewards


ONE = [1.5, np.float32(1.5), np.float64(1.5), np.array(1.5), torch.tensor(1.5), Fraction(3, 2), Decimal("1.5")]


@pytest.mark.parametrize("given", ONE, ids=lambda given: type(given).__name__)
def test_trajectory_reward_gives_one_number_to_the_last_turn(given: Any) -> None:
    assert rewarded(given) == (0.0, 1.5)
    assert all(type(number) is float for number in rewarded(given))


@pytest.mark.parametrize(
    "given", [(2, 1.5), [np.int64(2), np.float32(1.5)], np.array([2, 1.5]), torch.tensor([2, 1.5])]
)
def test_trajectory_reward_accepts_one_number_per_turn(given: Any) -> None:
    assert rewarded(given) == (2.0, 1.5)


def test_trajectory_reward_counts_booleans_as_1_and_0() -> None:
    assert (rewarded(True), rewarded(np.bool_(True)), rewarded(False)) == ((0.0, 1.0), (0.0, 1.0), (0.0, 0.0))


def test_trajectory_reward_of_an_empty_episode_is_empty() -> None:
    assert rewarded(1.5, turns=0) == ()


WRONG = ["1.5", None, 1j, {}, math.nan, -math.inf, np.float32("nan"), torch.tensor(math.inf), 10**400, Decimal("sNaN")]


@pytest.mark.parametrize("given", WRONG, ids=lambda given: str(given)[:9])
def test_trajectory_reward_rejects_values_that_are_not_finite(given: Any) -> None:
    for reward in (given, [0.0, given]):
        with pytest.raises(UserError, match="return finite numbers"):
            rewarded(reward)


@pytest.mark.parametrize("given", [[1.0], (1.0, 2.0, 3.0), np.zeros(3), []])
def test_trajectory_reward_rejects_a_wrong_number_of_values(given: Any) -> None:
    with pytest.raises(UserError, match="return one number, or one for each of 2 turns"):
        rewarded(given)


NO_NUMBER = {r"None \(is a return missing\?\)": None, "the text '1.5'": "1.5"}


@pytest.mark.parametrize("shown", NO_NUMBER)
def test_trajectory_reward_error_shows_value_and_source_line(shown: str) -> None:
    with pytest.raises(Outage, match=rf"^the reward <lambda> returned {shown} \(test_functions.py:\d+\)"):
        rewarded(NO_NUMBER[shown])


def raises(error: BaseException) -> Any:
    def score(trajectory: Trajectory) -> float:
        raise error

    return score


@pytest.mark.parametrize("error", [KeyError("price"), SystemExit(3)])
def test_trajectory_reward_error_names_the_line_that_raised(error: BaseException) -> None:
    what = "raised KeyError: 'price'" if isinstance(error, KeyError) else "called sys.exit"
    line = raises(error).__code__.co_firstlineno + 1
    with pytest.raises(Outage, match=f"^the reward score {what} at test_functions.py:{line}: "):
        asyncio.run(trajectory_reward(raises(error))(Trajectory))  # type: ignore[arg-type]


def two(answer: str, row: Any) -> float:
    return 0.0


def of_answers(answered: Any) -> float:
    return 0.0


def of_completions(completions: Any, **columns: Any) -> list[float]:
    return []


def yields(trajectory: Trajectory) -> Any:
    yield 1.0


async def yields_later(trajectory: Trajectory) -> Any:
    yield 1.0


class Shop:
    def __init__(self, trajectory: Trajectory) -> None:
        pass


WRONG_KIND = {
    two: r"must take one argument: write function\(trajectory\)",
    of_answers: r"takes an answer, .*: set env.params.reward",
    of_completions: r"takes a batch of completions: write function\(trajectory\)",
    yields: r"is a generator: return a number",
    yields_later: r"is a generator: return a number",
    Shop: r"is a class: give a function",
}


@pytest.mark.parametrize("function", WRONG_KIND, ids=lambda function: function.__name__)
def test_trajectory_reward_rejects_wrong_signatures(function: Any) -> None:
    with pytest.raises(UserError, match=f"^the reward {function.__name__} {WRONG_KIND[function]}"):
        trajectory_reward(function)


def test_trajectory_reward_rejects_nested_arrays() -> None:
    with pytest.raises(UserError, match="return finite numbers"):
        rewarded(np.zeros((2, 2)))
