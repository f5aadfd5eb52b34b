import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Status, Stop, Trajectory, Turn
from turnwise.rewards.scoring import score_group, score_trajectory

TASK = Task(env="bandit", seed=1)


def played(rewards: Sequence[float], invalid: Sequence[bool] | None = None, member: int = 0) -> Trajectory:
    turns = tuple(
        Turn(
            context_ids=(1,),
            extends=True,
            action_ids=(2, 3),
            action_logprobs=(-0.5, -0.5),
            temperature=1.0,
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


def test_score_trajectory_penalises_invalid_turns() -> None:
    scored = score_trajectory(played([0.0, -0.1, 1.0], [True, False, True]), 0.25)
    assert scored.turn_rewards == (-0.25, -0.1, 0.75)
    assert scored.rewards == {"env": 0.9, "format": -0.5}


def test_score_trajectory_keeps_rewards_of_valid_turns() -> None:
    scored = score_trajectory(played([0.5, 1.0]), 0.25)
    assert scored.turn_rewards == (0.5, 1.0)
    assert math.copysign(1, scored.rewards["format"]) == 1  # 0, not -0


@given(
    turns=st.lists(st.tuples(st.floats(-10, 10), st.booleans()), max_size=6),
    penalty=st.floats(0, 2),
)
def test_score_trajectory_is_idempotent(turns: list[tuple[float, bool]], penalty: float) -> None:
    once = score_trajectory(played([r for r, _ in turns], [bad for _, bad in turns]), penalty)
    assert score_trajectory(once, penalty) == once
    assert once.total_reward == pytest.approx(once.rewards["env"] + once.rewards["format"], abs=1e-9)
    assert once.total_reward == pytest.approx(
        sum(r for r, _ in turns) - penalty * sum(bad for _, bad in turns), abs=1e-9
    )


def test_score_group_changes_nothing_but_rewards() -> None:
    members = (played([1.0], [True], member=0), played([0.0], member=1))
    scored = score_group(Group(task=TASK, trajectories=members), 0.5)
    assert [member.turn_rewards for member in scored.trajectories] == [(0.5,), (0.0,)]
    for before, after in zip(members, scored.trajectories, strict=True):
        assert replace(after, turn_rewards=before.turn_rewards, rewards={}) == before
