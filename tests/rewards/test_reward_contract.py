"""The contract of `Reward` and `GroupReward` over rewards of every kind, and over rewards that break it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import turnwise as tw
from episodes_for_tests import group_of, turn_of
from judges_for_tests import JudgeServer, client_of, decode, member, serving, settings_for
from judges_for_tests import group_of as judged_group
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.protocols import RewardResult
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rewards.functions import build_reward, trajectory_reward
from turnwise.rewards.judge.judges import GroupJudge
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


VERDICTS = {"absolute": {"score": 5}, "relative": {"scores": {"1": 7, "2": 3}}, "pairwise": {"winner": "1"}}
"""Answer of a judge by its mode."""


@pytest.mark.parametrize("mode", ["absolute", "relative", "pairwise"])
def test_judge_keeps_the_contract(mode: str, tmp_path: Path) -> None:
    with serving(JudgeServer(lambda messages: json.dumps(VERDICTS[mode]))) as url:
        settings = settings_for(url, tmp_path, mode=mode)
        judge = GroupJudge(settings=settings, client=client_of(settings), decode=decode)
        check_group_reward(judge, judged_group(member("I look.", "7"), member("3")))


class Bonus(tw.RewardFunction):
    """A reward with a setting."""

    size: float = 0.5

    def score(self, trajectory: Trajectory) -> list[float]:
        return [self.size for _ in trajectory.turns]


def test_reward_class_keeps_the_contract() -> None:
    check_reward(build_reward(Bonus(size=2.0)), GROUP.trajectories[0])


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
