"""Rewards that a person writes as a plain function of a trajectory."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.protocols import Reward, RewardResult
from turnwise.core.trajectory import Trajectory


def from_function(function: Callable[[Trajectory], Any]) -> Reward:
    """`function(trajectory)` gives a number, for the last turn, or one number a turn; it may be async.

    An InfrastructureFailure of its own leaves the episode out; whatever else it raises is its author's to mend.
    """

    async def reward(trajectory: Trajectory) -> RewardResult:
        name = getattr(function, "__name__", "reward")
        try:
            given = function(trajectory)
            given = await given if inspect.isawaitable(given) else given
        except InfrastructureFailure:
            raise
        except Exception as error:
            raise UserError(f"the reward {name} failed: {type(error).__name__}: {error}") from error
        return RewardResult(turn_rewards=_by_turn(given, len(trajectory.turns), name))

    return reward


def _by_turn(given: Any, turns: int, name: str) -> tuple[float, ...]:
    plain = given.tolist() if hasattr(given, "tolist") else given  # numpy's and torch's, of any shape
    if not isinstance(plain, Sequence) or isinstance(plain, str):
        plain = ([0.0] * turns + [plain])[1:] if turns else []  # an episode that had no turn has none to reward
    if len(plain) != turns:
        raise UserError(f"the reward {name} gave {len(plain)} numbers for {turns} turns: give one, or one a turn")
    numbers = tuple(map(_number, plain))
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"the reward {name} gave {given!r}: give finite numbers")
    return numbers


def _number(value: Any) -> float:
    """Whatever is a real number, of any library; NaN for what is none."""
    try:
        return float(value) if hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan
