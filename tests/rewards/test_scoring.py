import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import assistant
from turnwise.core.protocols import RewardResult
from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Status, Stop, Trajectory, Turn
from turnwise.rewards.scoring import apply_rewards, score_group, score_trajectory

TASK = Task(env="bandit", seed=1)


def played(rewards: Sequence[float], invalid: Sequence[bool] | None = None, member: int = 0) -> Trajectory:
    turns = tuple(
        Turn(
            context_ids=(1,),
            extends=True,
            action_ids=(2, 3),
            action_logprobs=(-0.5, -0.5),
            temperature=1.0,
            policy_version=0,
            spans=(),
            message=assistant(""),
            stop=Stop.EOS,
            reward=reward,
            invalid=bad,
        )
        for reward, bad in zip(rewards, invalid or [False] * len(rewards), strict=True)
    )
    return Trajectory(
        task=TASK, member=member, attempt=0, turns=turns, status=Status.FAILED, turn_rewards=tuple(rewards)
    )


async def one_each(trajectory: Trajectory) -> RewardResult:
    await asyncio.sleep(0)
    return RewardResult(turn_rewards=(1.0,) * len(trajectory.turns))


async def number_of_member(trajectory: Trajectory) -> RewardResult:
    await asyncio.sleep(0.001 * (3 - trajectory.member))  # the first member answers last
    return RewardResult(turn_rewards=(0.0,) * (len(trajectory.turns) - 1) + (float(trajectory.member),))


def test_the_penalty_is_subtracted_once_from_each_invalid_turn_and_nowhere_else() -> None:
    scored = score_trajectory(played([0.0, -0.1, 1.0], [True, False, True]), 0.25)
    assert scored.turn_rewards == (-0.25, -0.1, 0.75)
    assert scored.rewards == {"env": 0.9, "format": -0.5}


def test_a_trajectory_without_fault_keeps_its_rewards() -> None:
    scored = score_trajectory(played([0.5, 1.0]), 0.25)
    assert scored.turn_rewards == (0.5, 1.0)
    assert math.copysign(1, scored.rewards["format"]) == 1  # 0, not -0


@given(
    turns=st.lists(st.tuples(st.floats(-10, 10), st.booleans()), max_size=6),
    penalty=st.floats(0, 2),
)
def test_scoring_twice_counts_nothing_twice_and_the_parts_sum_up(
    turns: list[tuple[float, bool]], penalty: float
) -> None:
    once = score_trajectory(played([r for r, _ in turns], [bad for _, bad in turns]), penalty)
    assert score_trajectory(once, penalty) == once
    assert once.total_reward == pytest.approx(once.rewards["env"] + once.rewards["format"], abs=1e-9)
    assert once.total_reward == pytest.approx(
        sum(r for r, _ in turns) - penalty * sum(bad for _, bad in turns), abs=1e-9
    )


def test_a_group_keeps_its_members_and_all_else_about_them() -> None:
    members = (played([1.0], [True], member=0), played([0.0], member=1))
    scored = score_group(Group(task=TASK, trajectories=members), 0.5)
    assert [member.turn_rewards for member in scored.trajectories] == [(0.5,), (0.0,)]
    for before, after in zip(members, scored.trajectories, strict=True):
        assert replace(after, turn_rewards=before.turn_rewards, rewards={}) == before


def test_weighted_rewards_are_added_turn_by_turn_to_the_right_member() -> None:
    group = Group(task=TASK, trajectories=tuple(played([0.0, 1.0], [True, False], member=m) for m in range(3)))
    rewards = {"steady": (one_each, 0.5), "member": (number_of_member, -2.0)}
    scored = asyncio.run(apply_rewards(group, rewards, 0.1))
    assert [member.turn_rewards for member in scored.trajectories] == [
        (0.4, 1.5),
        (0.4, -0.5),
        (0.4, -2.5),
    ]
    assert scored.trajectories[2].rewards == {"env": 1.0, "format": -0.1, "steady": 2.0, "member": 2.0}


def test_no_reward_functions_is_plain_scoring() -> None:
    group = Group(task=TASK, trajectories=(played([1.0], [True]),))
    assert asyncio.run(apply_rewards(group, {}, 0.5)) == score_group(group, 0.5)


def test_a_reward_that_cannot_be_reached_is_an_error_and_no_zero() -> None:
    finished = []

    async def unreachable(trajectory: Trajectory) -> RewardResult:
        raise InfrastructureFailure("judge is down")

    async def slow(trajectory: Trajectory) -> RewardResult:
        await asyncio.sleep(0.01)
        finished.append(trajectory.member)
        return RewardResult(turn_rewards=(0.0,))

    group = Group(task=TASK, trajectories=(played([1.0]),))
    with pytest.raises(InfrastructureFailure, match="judge is down"):
        asyncio.run(apply_rewards(group, {"judge": (unreachable, 1.0), "slow": (slow, 1.0)}, 0.0))
    assert finished == [0]


@pytest.mark.parametrize("values", [(1.0,), (1.0, 2.0, 3.0), (1.0, math.nan), (math.inf, 0.0)])
def test_rewards_that_do_not_fit_are_refused_by_name(values: tuple[float, ...]) -> None:
    async def wrong(trajectory: Trajectory) -> RewardResult:
        return RewardResult(turn_rewards=values)

    group = Group(task=TASK, trajectories=(played([0.0, 0.0]),))
    with pytest.raises(ValueError, match="reward style"):
        asyncio.run(apply_rewards(group, {"style": (wrong, 1.0)}, 0.0))


@pytest.mark.parametrize("name", ["env", "format"])
def test_the_names_of_the_built_in_parts_are_taken(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        asyncio.run(apply_rewards(Group(task=TASK, trajectories=()), {name: (one_each, 1.0)}, 0.0))
