"""The contract of `Reward` and `GroupReward` over rewards of every kind, and over rewards that break it."""

from collections.abc import Callable, Sequence

import pytest

from episodes_for_tests import group_of, turn_of
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.protocols import RewardResult
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rewards.functions import trajectory_reward
from turnwise.testing import check_group_reward, check_reward

GROUP = group_of([[turn_of([3, 4], [5]), turn_of([6], [7, 8])], [turn_of([3, 4], [9])]], 0)


def count_turns(trajectory: Trajectory) -> int:
    return len(trajectory.turns)


async def reward_turns(trajectory: Trajectory) -> list[float]:
    return [0.5 for _ in trajectory.turns]


@pytest.mark.parametrize("function", [count_turns, reward_turns])
def test_reward_function_keeps_the_contract(function: Callable[[Trajectory], object]) -> None:
    for trajectory in GROUP.trajectories:
        check_reward(trajectory_reward(function), trajectory)


def returns(*values: float) -> Callable[[Trajectory], object]:
    async def reward(trajectory: Trajectory) -> RewardResult:
        return RewardResult(turn_rewards=values)

    return reward


@pytest.mark.parametrize(
    ("values", "rule"), [((1.0,), "one value per turn"), ((1.0, float("nan")), "rewards are finite numbers")]
)
def test_check_reward_names_the_broken_rule(values: Sequence[float], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_reward(returns(*values), GROUP.trajectories[0])  # type: ignore[arg-type]


async def rank_members(group: Group) -> tuple[RewardResult | InfrastructureFailure, ...]:
    first, *others = group.trajectories
    scored = RewardResult(turn_rewards=(1.0,) * len(first.turns))
    return scored, *(InfrastructureFailure("the judge is gone") for _ in others)


async def rank_the_first(group: Group) -> tuple[RewardResult | InfrastructureFailure, ...]:
    return (await rank_members(group))[:1]


def test_check_group_reward_asks_for_a_result_per_member() -> None:
    check_group_reward(rank_members, GROUP)
    with pytest.raises(AssertionError, match="one result per member"):
        check_group_reward(rank_the_first, GROUP)
