"""Judges of groups among the other rewards of a run."""

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from test_scoring import TASK, played

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.protocols import RewardResult
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rewards.functions import trajectory_reward
from turnwise.rewards.scoring import RewardSet, ScoredGroups, score_groups
from virtual_time_for_tests import block as hold_loop
from virtual_time_for_tests import follow_virtual_time, run_in_virtual_time


async def by_place(group: Group) -> tuple[RewardResult, ...]:
    """The third member is worth more than the second; each stands at the last turn."""
    return tuple(
        RewardResult(turn_rewards=(*[0.0] * (len(member.turns) - 1), float(place)))
        for place, member in enumerate(group.trajectories)
    )


async def per_turn(trajectory: Trajectory) -> RewardResult:
    return RewardResult(turn_rewards=(0.5,) * len(trajectory.turns))


async def fails_on_odd_seeds(group: Group) -> tuple[RewardResult, ...]:
    if group.task.seed % 2:
        raise InfrastructureFailure("the judge is gone")
    return await by_place(group)


def groups(count: int = 1) -> list[Group]:
    members = [played([0.0, 1.0], [True, False]), played([2.0]), played([0.0, 0.0, 3.0])]
    return [Group(task=replace(TASK, seed=seed), trajectories=tuple(members)) for seed in range(count)]


def scored(rewards: RewardSet, count: int = 1) -> ScoredGroups:
    return asyncio.run(score_groups(groups(count), rewards))


def test_score_groups_adds_weighted_functions_and_judges() -> None:
    rewards = RewardSet(
        format_penalty=0.1,
        functions={"steady": per_turn},
        judges={"taste": by_place},
        weights={"env": 1.0, "steady": 2.0, "taste": -10.0},
    )
    (group,) = scored(rewards).groups
    assert [member.turn_rewards for member in group.trajectories] == [
        (-0.1 + 1.0, 1.0 + 1.0),
        (2.0 + 1.0 - 10.0,),
        (1.0, 1.0, 3.0 + 1.0 - 20.0),
    ]
    assert [member.rewards["taste"] for member in group.trajectories] == [0.0, 1.0, 2.0]
    assert [member.rewards["steady"] for member in group.trajectories] == [1.0, 0.5, 1.5]
    assert [member.rewards["env"] for member in group.trajectories] == [1.0, 2.0, 3.0]


def test_score_groups_drops_groups_that_a_judge_fails_on() -> None:
    rewards = RewardSet(
        format_penalty=0.0, functions={}, judges={"taste": fails_on_odd_seeds}, weights={"env": 1.0, "taste": 1.0}
    )
    found = scored(rewards, count=5)
    assert [group.task.seed for group in found.groups] == [0, 2, 4]
    assert found.failures == ("the reward taste: the judge is gone",) * 2
    assert (found.dropped_members, found.last_failure) == (6, "the reward taste: the judge is gone")


def test_score_groups_records_named_parts_of_env_rewards() -> None:
    turn = played([1.5]).turns[0]
    named = replace(turn, info={"rewards": {"exact_match": 1.0, "judge": 0.5}})
    member = replace(played([1.5]), turns=(named,))
    rewards = RewardSet(format_penalty=0.0, functions={}, judges={}, weights={"env": 1.0})
    group = asyncio.run(score_groups([Group(task=TASK, trajectories=(member,))], rewards)).groups[0]
    assert group.trajectories[0].rewards == {"exact_match": 1.0, "judge": 0.5, "env": 1.5, "format": 0.0}
    assert group.trajectories[0].total_reward == 1.5


def drop(*places: int) -> ScoredGroups:
    """Score a group of three whose members at `places` get no verdict."""

    async def judge(group: Group) -> tuple[RewardResult | InfrastructureFailure, ...]:
        return tuple(
            InfrastructureFailure(f"no idea of {place}") if place in places else each
            for place, each in enumerate(await by_place(group))
        )

    judges = {"taste": judge, "other": by_place}
    weights = {"env": 1.0, "taste": 1.0, "other": 0.0}
    return scored(
        RewardSet(format_penalty=0.0, functions={"steady": per_turn}, judges=judges, weights=weights | STEADY)
    )


STEADY = {"steady": 10.0}


def test_score_groups_drops_members_without_a_verdict() -> None:
    (group,) = drop(1).groups
    assert [member.turn_rewards for member in group.trajectories] == [
        (10 * 0.5, 1.0 + 5.0),
        (5.0, 5.0, 3.0 + 5.0 + 2.0),
    ]
    assert drop(1).failures == ()
    assert (drop(1).dropped_members, drop(1).last_failure) == (
        1,
        "the reward taste: no idea of 1",
    )


def test_score_groups_drops_groups_of_fewer_than_two() -> None:
    found = drop(0, 2)
    message = "2 of a group's 3 members have no reward: the reward taste: no idea of 2"
    assert found.groups == [] and found.failures == (message,) and found.dropped_members == 3


def test_score_groups_keeps_a_judged_group_of_one() -> None:
    rewards = RewardSet(
        format_penalty=0.0, functions={}, judges={"taste": by_place}, weights={"env": 1.0, "taste": 1.0}
    )
    alone = Group(task=TASK, trajectories=(played([2.0]),))
    assert len(asyncio.run(score_groups([alone], rewards)).groups) == 1


def test_score_groups_drops_members_whose_function_fails() -> None:
    def reach(longest: int) -> ScoredGroups:
        def score(trajectory: Trajectory) -> float:
            if len(trajectory.turns) > longest:
                raise InfrastructureFailure("the server is gone")
            return 0.5

        rewards = RewardSet(
            format_penalty=0.0, functions={"score": trajectory_reward(score)}, weights={"env": 1, "score": 1}
        )
        return scored(rewards)

    (group,) = reach(2).groups
    assert [member.turn_rewards for member in group.trajectories] == [(0.0, 1.5), (2.5,)]
    message = "2 of a group's 3 members have no reward: the reward score: the server is gone"
    assert reach(1) == ScoredGroups(groups=[], failures=(message,), dropped_members=3, last_failure=message)


async def hang(trajectory: Trajectory) -> float:
    return await asyncio.Event().wait()


async def hang_busily(trajectory: Trajectory) -> float:
    await asyncio.sleep(0)
    time.sleep(60)
    return 1.0


def block(trajectory: Trajectory) -> float:
    time.sleep(60)
    return 1.0


@pytest.mark.parametrize(
    ("late", "message"),
    [
        (hang, r"the reward score returned nothing within rollout\.timeout_s 0\.5"),
        (hang_busily, r"the reward score ran for 0\.5 s without a pause, at test_scoring_groups\.py:\d+"),
        (block, r"the reward score ran for 0\.5 s without a pause, at test_scoring_groups\.py:\d+"),
    ],
)
def test_score_groups_drops_members_whose_function_hangs(
    late: Callable[[Trajectory], float | Awaitable[float]], message: str
) -> None:
    def score(trajectory: Trajectory) -> float | Awaitable[float]:
        return late(trajectory) if len(trajectory.turns) == 1 else 0.5

    functions = {"score": trajectory_reward(score)}
    found = scored(RewardSet(format_penalty=0.0, functions=functions, weights={"env": 1, "score": 1}, timeout_s=0.5))
    assert [len(group.trajectories) for group in found.groups] == [2] and found.dropped_members == 1
    assert re.search(message, found.last_failure)


async def block_then_wait(trajectory: Trajectory, lock: asyncio.Lock) -> float:
    hold_loop(0.15)
    await asyncio.sleep(0.01)
    return 0.5


async def take_turns(trajectory: Trajectory, lock: asyncio.Lock) -> float:
    async with lock:
        await asyncio.sleep(0.1)
    return 0.5


@pytest.mark.parametrize("one", [block_then_wait, take_turns])
def test_score_groups_does_not_time_other_calls(
    one: Callable[[Trajectory, asyncio.Lock], Awaitable[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fifteen calls together take longer than the limit, each alone a fraction of it."""
    follow_virtual_time(monkeypatch)
    lock = asyncio.Lock()
    functions = {"score": trajectory_reward(lambda trajectory: one(trajectory, lock))}
    rewards = RewardSet(format_penalty=0.0, functions=functions, weights={"env": 1, "score": 1}, timeout_s=1.0)
    found = run_in_virtual_time(score_groups(groups(5), rewards))
    assert (found.dropped_members, found.last_failure) == (0, "")


def test_score_groups_ends_when_every_call_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are cut off give the others no more time."""
    follow_virtual_time(monkeypatch)

    calls = itertools.count()

    async def hang_from_now_on(trajectory: Trajectory) -> float:
        hold_loop(0.05 * next(calls))  # so that each of them runs out of time at another moment
        return await hang(trajectory)

    async def scenario() -> float:
        await score_groups(groups(5), rewards)
        return asyncio.get_running_loop().time()

    functions = {"score": trajectory_reward(hang_from_now_on)}
    rewards = RewardSet(format_penalty=0.0, functions=functions, weights={"env": 1, "score": 1}, timeout_s=1.0)
    assert run_in_virtual_time(scenario()) < 0.05 * sum(range(15)) + 2 * rewards.timeout_s
