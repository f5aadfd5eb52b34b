"""A step's groups: filtered, refilled, with greedy members where they are asked for."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from episodes_for_tests import group_of, turn_of
from learners_for_tests import make_learner, random_groups, settings_of
from turnwise.core.errors import InfrastructureFailure, Outage
from turnwise.core.protocols import RewardResult
from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Status, Trajectory
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.scoring import RewardSet
from turnwise.rollout.collect import CollectedGroups
from turnwise.rollout.failures import DroppedEpisodes
from turnwise.rollout.tasks import EnvMixEntry, TaskSource
from turnwise.run.build import build_rewards
from turnwise.training.sources.played import Played, RetryRounds, TaskResults, filter_groups
from turnwise.training.step import Rollout

TASKS = TaskSource(mix=(EnvMixEntry(env="test"),), run_seed=0)


class FakeCollector:
    """Plays groups whose members differ in reward for every other task, or for all but one; remembers its tasks."""

    def __init__(self, reward: float = 1.0, broken: int | None = None, alike: int | None = None) -> None:
        self.asked: list[Task] = []
        self.drawn: list[Any] = []
        self.reward, self.broken, self.alike = reward, broken, alike

    async def collect(self, tasks: list[Task], *, group_size: int, drawn: Any = None, **_: Any) -> CollectedGroups:
        self.drawn.append(drawn)
        groups = [self._group(task, len(self.asked) + number, group_size) for number, task in enumerate(tasks)]
        self.asked += tasks
        kept = tuple(group for number, group in enumerate(groups) if number != self.broken)
        return CollectedGroups(groups=kept, counts=Counter({"env_errors": 1}))

    def _group(self, task: Task, number: int, size: int) -> Group:
        spread = number % 2 == 0 if self.alike is None else number != self.alike
        made = group_of(
            [[turn_of([3] * 9, [4, 5], extends=False, reward=self.reward if spread else 0.0)]]
            + [[turn_of([3] * 9, [6], extends=False)] for _ in range(size - 1)]
        )
        return Group(task=task, trajectories=tuple(replace(each, task=task) for each in made.trajectories))


def gathered(
    collector: FakeCollector,
    greedy: FakeCollector | None = None,
    rewards: RewardSet | None = None,
    retry: RetryRounds | None = None,
    **settings: Any,
) -> Rollout:
    config = settings_of(**settings)
    source = Played(
        tasks=TASKS,
        results=TaskResults(TASKS),
        collector=collector,  # type: ignore[arg-type]
        greedy=greedy,  # type: ignore[arg-type]
        rewards=rewards or build_rewards(config.reward, config.rollout, JudgeRegistry(), str),
        select=partial(filter_groups, learner=make_learner(config), algo=config.algo, micro_tokens=1000),
        scale=config.algo.filter.rate_scale,
        count=4,
        group_size=3,
        refill=config.algo.filter.refill_rounds,
        show=lambda name, done, total: None,
        retry=retry,
    )
    return asyncio.run(source.groups(7))


SPREAD = {"algo__filter": "absolute", "algo__filter__value": 0.01}


def test_without_a_filter_all_groups_are_trained() -> None:
    found = gathered(FakeCollector())
    assert found.kept == found.groups and len(found.kept) == 4 and found.rate_scale == 1.0
    assert found.baselines is None and found.counts == {"env_errors": 1}


def test_kept_share_of_groups_scales_the_learning_rate() -> None:
    found = gathered(FakeCollector(), **SPREAD, algo__filter__scale="share")
    assert [group.task for group in found.kept] == [found.groups[0].task, found.groups[2].task]
    assert found.rate_scale == 0.5 and found.metrics()["rollout/kept_share"] == 0.5


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("share", 7 / 8), ("root", (7 / 8) ** 0.5)])
def test_surplus_groups_that_passed_count_as_kept(scale: str, factor: float) -> None:
    """3 of the first 4 pass, then all of the next 4: 7 of 8, of which 4 are trained."""
    found = gathered(FakeCollector(alike=1), **SPREAD, algo__filter__refill=1, algo__filter__scale=scale)
    assert (len(found.groups), len(found.kept)) == (8, 4)
    assert found.metrics()["rollout/kept_share"] == 7 / 8 and found.rate_scale == factor


def test_rollout_refills_until_enough_groups_pass_or_the_limit() -> None:
    collector = FakeCollector()
    found = gathered(collector, **SPREAD, algo__filter__refill=5)
    assert len(found.kept) == 4 and len(found.groups) == 8
    assert collector.asked == TASKS.draw(7, 8), "the same tasks as one long draw, none twice"
    first, second = collector.drawn
    assert first is second is not None, "where tasks are few, a later round has other members of them"
    hopeless = FakeCollector(reward=0.0)
    assert gathered(hopeless, **SPREAD, algo__filter__refill=2).kept == []
    assert len(hopeless.asked) == 12


def test_groups_without_a_greedy_baseline_are_dropped() -> None:
    greedy = FakeCollector(reward=0.25, broken=1)
    found = gathered(FakeCollector(), greedy, **SPREAD, algo__advantage="remax")
    assert greedy.asked == [found.groups[0].task, found.groups[2].task]
    assert [group.task for group in found.kept] == [found.groups[0].task]
    assert found.baselines == {("test", found.groups[0].task.seed): 0.25}


def judged_unless(fails: Any) -> RewardSet:
    """A reward that is gone for members that `fails` says."""

    async def score(trajectory: Trajectory) -> RewardResult:
        if fails(trajectory):
            raise InfrastructureFailure("the judge is gone")
        return RewardResult(turn_rewards=(1.0,) * len(trajectory.turns))

    return RewardSet(format_penalty=0.0, functions={"taste": score}, weights={"env": 1.0, "taste": 1.0})


def test_rollout_counts_members_without_a_reward() -> None:
    assert gathered(FakeCollector()).metrics()["rollout/dropped_no_reward"] == 0.0
    found = gathered(FakeCollector(), rewards=judged_unless(lambda each: each.total_reward > 0))
    assert found.metrics()["rollout/dropped_no_reward"] == 2.0 and len(found.kept) == 4
    assert found.dropped == DroppedEpisodes(dropped=2, total=12, reason="the reward taste: the judge is gone")
    with pytest.raises(Outage, match=r"No group of this step could be scored .*taste: the judge is gone"):
        gathered(FakeCollector(), rewards=judged_unless(lambda each: True))


def test_members_of_dropped_groups_count_as_dropped() -> None:
    found = gathered(FakeCollector(broken=1))
    assert (found.dropped.dropped, found.dropped.total) == (3, 12)
    assert gathered(FakeCollector(), FakeCollector(broken=1), algo__advantage="remax").dropped.dropped == 3


@pytest.mark.parametrize("by", ["entropy", "entropy_std", "length", "reward", "reward_sum", "reward_std"])
def test_every_score_ranks_groups(by: str) -> None:
    config = settings_of(algo__filter="top_count", algo__filter__count=1, algo__filter__by=by)
    groups = random_groups(groups=3)
    kept = [filter_groups(groups, make_learner(config), config.algo, size) for size in (10**6, 20)]
    assert len(kept[0]) == 1 and kept[0] == kept[1], "whatever the micro-batches"


class SolvingCollector(FakeCollector):
    """Plays groups without a success, but for the n-th tasks that it is asked for."""

    def __init__(self, *solved: int) -> None:
        super().__init__()
        self.solved = solved

    def _group(self, task: Task, number: int, size: int) -> Group:
        group = super()._group(task, number, size)
        status = Status.SUCCEEDED if number in self.solved else Status.FAILED
        first, *others = group.trajectories
        return replace(group, trajectories=(replace(first, status=status), *others))


def test_unsolved_tasks_are_played_again_and_a_success_is_trained_on() -> None:
    first, hot = SolvingCollector(0, 2), SolvingCollector(1, 2)
    rollout = gathered(first, retry=RetryRounds(collector=hot, rounds=2))  # type: ignore[arg-type]
    tasks = TASKS.draw(7, 4)
    assert hot.asked == [tasks[1], tasks[3], tasks[1]], "the second round plays what the first did not solve"
    assert first.drawn[0] is hot.drawn[0] is hot.drawn[1] is not None, "members that are played again get new numbers"
    assert [group.task for group in rollout.kept] == [group.task for group in rollout.groups] == tasks
    same = [kept is group for kept, group in zip(rollout.kept, rollout.groups, strict=True)]
    assert same == [True, False, True, False], "metrics are those of the first groups"
    assert rollout.retried == [rollout.kept[1], rollout.kept[3]], "recorded beside the first groups"
    assert all(any(member.status.succeeded for member in group.trajectories) for group in rollout.kept)
    assert rollout.counts == {"env_errors": 3, "retried_groups": 3, "retry_solved": 2}


def test_unsolved_groups_are_trained_on_if_no_retry_solves_them() -> None:
    hopeless = SolvingCollector()
    rollout = gathered(SolvingCollector(0, 1, 2), retry=RetryRounds(collector=hopeless, rounds=1))  # type: ignore[arg-type]
    assert rollout.kept == rollout.groups and len(hopeless.asked) == 1
    untouched = SolvingCollector()
    gathered(SolvingCollector(0, 1, 2, 3), retry=RetryRounds(collector=untouched, rounds=1))  # type: ignore[arg-type]
    assert untouched.asked == []
