"""Rewards that a person writes as a plain function of a trajectory."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.protocols import Reward, RewardResult
from turnwise.core.trajectory import Trajectory
from turnwise.rewards.calling import call, check_function, no_number, number, parameters_of, takes

OF_ANSWERS = {"answer", "row", "answered"}
"""What functions of another kind call their arguments."""


def from_function(function: Callable[[Trajectory], Any]) -> Reward:
    """`function(trajectory)` gives a number, for the last turn, or one number a turn; it may be async.

    An InfrastructureFailure of its own leaves the episode out; whatever else it raises is its author's to mend.
    """
    told = f"the reward {getattr(function, '__name__', 'reward')}"
    check_function(function, told)
    if not takes(function, 1):
        raise UserError(f"{told} takes other arguments: write function(trajectory)")
    if OF_ANSWERS & set(parameters_of(function)):
        raise UserError(
            f"{told} is one of answers, and reward.functions get trajectories: name it in env.params.reward"
        )

    async def reward(trajectory: Trajectory) -> RewardResult:
        given = await call(function, trajectory, told=told, mend=lambda error: "mend it")
        return RewardResult(turn_rewards=_by_turn(given, len(trajectory.turns), function, told))

    return reward


def _by_turn(given: Any, turns: int, function: Callable[..., Any], told: str) -> tuple[float, ...]:
    plain = given.tolist() if hasattr(given, "tolist") else given  # numpy's and torch's, of any shape
    if not isinstance(plain, Sequence) or isinstance(plain, str):
        plain = ([0.0] * turns + [plain])[1:] if turns else []  # an episode that had no turn has none to reward
    if len(plain) != turns:
        mend = f"give one number, or one for each of {turns} turns"
        raise no_number(given, function, told, mend)
    numbers = tuple(map(number, plain))
    if not all(map(math.isfinite, numbers)):
        raise no_number(given, function, told, "give finite numbers")
    return numbers
