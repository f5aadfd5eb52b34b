"""Which groups of a step are trained: by scores worked out by hand."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from step_by_hand_for_tests import plain_model, tokens_of

from episodes_for_tests import group_of, turn_of
from learners_for_tests import make_learner, settings_of
from turnwise.core.task import Task
from turnwise.core.trajectory import Group
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rollout.collect import CollectedGroups
from turnwise.rollout.tasks import EnvMixEntry, TaskSource
from turnwise.run.build import build_rewards
from turnwise.training.sources.played import Played, TaskResults, filter_groups


def group(index: int, *members: tuple[list[int], tuple[float, ...]]) -> Group:
    """A group. Each member: the ids it samples at every turn, and its turns' rewards."""
    return group_of(
        [
            [turn_of([3] * 9, said, extends=number > 0, reward=reward) for number, reward in enumerate(rewards)]
            for said, rewards in members
        ],
        index,
    )


class FakeCollector:
    """In three of four groups the members differ in reward."""

    async def collect(self, tasks: list[Task], **_: Any) -> CollectedGroups:
        groups = []
        for number, task in enumerate(tasks):
            made = group(0, ([4, 5], (1.0 if number % 4 else 0.0,)), ([6], (0.0,)))
            groups.append(Group(task=task, trajectories=tuple(replace(each, task=task) for each in made.trajectories)))
        return CollectedGroups(groups=tuple(groups), counts=Counter())


def test_refill_trains_no_more_groups_than_asked_for() -> None:
    config = settings_of(algo__filter="absolute", algo__filter__value=0.01, algo__filter__refill=3)
    tasks = TaskSource(mix=(EnvMixEntry(env="test"),), run_seed=0)
    source = Played(
        tasks=tasks,
        results=TaskResults(tasks),
        collector=FakeCollector(),  # type: ignore[arg-type]
        greedy=None,
        rewards=build_rewards(config.reward, config.rollout, JudgeRegistry(), str),
        select=partial(filter_groups, learner=make_learner(config), algo=config.algo, micro_tokens=1000),
        scale=lambda share: 1.0,
        count=4,
        group_size=2,
        refill=3,
        show=lambda name, done, total: None,
    )
    found = asyncio.run(source.groups(0))
    assert len(found.groups) == 8, "three groups pass a round"
    assert [each.task for each in found.kept] == [found.groups[number].task for number in (1, 2, 3, 5)]


def test_entropy_score_is_a_mean_over_tokens_however_many_there_are() -> None:
    """Long answers of low entropy have the larger sum: they must not have the larger score."""
    config = settings_of(algo__filter="top_count", algo__filter__count=1, algo__filter__by="entropy")
    learner = make_learner(config)

    def answering(index: int, said: list[int], temperature: float) -> Group:
        turn = turn_of([3] * 9, said, extends=False, temperature=temperature)
        return group_of([[turn], [turn]], index)

    long, short = answering(0, [*range(4, 12)], 0.5), answering(1, [4], 2.0)
    plain = plain_model(learner.model)
    entropies = [[token.entropy.item() for token in tokens_of([each], plain)] for each in (long, short)]
    assert max(entropies[0]) < min(entropies[1]) and sum(entropies[0]) > sum(entropies[1])
    assert filter_groups([long, short], learner, config.algo, 1000) == [short]


def test_reward_score_counts_all_turns() -> None:
    config = settings_of(algo__filter="top_count", algo__filter__count=1, algo__filter__by="reward_std")
    early = group(0, ([4], (1.0, 0.5)), ([5], (0.0, 0.5)))
    late = group(1, ([4], (0.0, 0.7)), ([5], (0.0, 0.1)))
    assert filter_groups([late, early], make_learner(config), config.algo, 1000) == [early]
