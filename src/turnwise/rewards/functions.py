"""Rewards that a person writes as a plain function of a trajectory."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.protocols import Reward, RewardResult
from turnwise.core.trajectory import Trajectory


def from_function(function: Callable[[Trajectory], Any]) -> Reward:
    """`function(trajectory)` gives a number, for the last turn, or one number a turn; it may be async."""

    async def reward(trajectory: Trajectory) -> RewardResult:
        name = getattr(function, "__name__", "reward")
        try:
            given = function(trajectory)
            given = await given if inspect.isawaitable(given) else given
        except Exception as error:
            raise UserError(f"the reward {name} failed: {type(error).__name__}: {error}") from error
        return RewardResult(turn_rewards=_by_turn(given, len(trajectory.turns), name))

    return reward


def _by_turn(given: Any, turns: int, name: str) -> tuple[float, ...]:
    values = given if isinstance(given, Sequence) and not isinstance(given, str) else [0.0] * (turns - 1) + [given]
    if len(values) != turns:
        raise UserError(f"the reward {name} gave {len(values)} numbers for {turns} turns: give one, or one a turn")
    numbers = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    if len(numbers) != turns:
        raise UserError(f"the reward {name} gave {given!r}: give finite numbers")
    return tuple(float(value) for value in numbers)
