"""The contract of `Source` over every source of turnwise, and over sources that break it."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from episodes_for_tests import context, limits, says, turn_of
from learners_for_tests import make_learner, random_groups, rollout_of, settings_of
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Turn
from turnwise.envs.agent.settings import CallersAgent
from turnwise.envs.registry import load_spec
from turnwise.gateway.agent_episodes import AgentCollector, RecordedEpisodes
from turnwise.gateway.agents import FunctionAgent
from turnwise.record.steps import IdleReason
from turnwise.record.trajectories import open_replay
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rollout.collect import Collector, GroupCollector
from turnwise.rollout.tasks import EnvMixEntry, TaskSource
from turnwise.run.build import build_rewards
from turnwise.testing import check_source
from turnwise.training.sources.played import Played, TaskResults, filter_groups
from turnwise.training.sources.played_ahead import PlayedAhead
from turnwise.training.sources.stored import Stored
from turnwise.training.step import Rollout, Source


def scripted_collector() -> GroupCollector:
    return Collector(
        policy=says("<answer>Dragon</answer>"),
        make_env=load_spec("bandit").make,
        context=context(),
        limits=limits(),
        in_flight=4,
        attempts=1,
        run_seed=0,
    )


@dataclass
class RecordedAgent:
    """An episode of an agent whose calls are already recorded."""

    rewards: dict[str, float]
    overflowed: bool = False
    refusal: str = ""
    failure: Exception | None = None
    bearer: str = "key"
    closed: bool = False

    def turns(self) -> tuple[Turn, ...]:
        return (turn_of([3, 4], [5, 6], extends=False),)


class RecordedGateway:
    url, socket, refusals = "http://127.0.0.1:1", "", ()

    async def open_episode(self, key: EpisodeKey, limits: Any) -> RecordedAgent:
        return RecordedAgent(rewards={"": key.member / 4})

    async def close_episode(self, episode: RecordedAgent) -> None:
        episode.closed = True


async def do_nothing(client: Any, task: Any) -> None:
    pass


def agent_collector() -> GroupCollector:
    gateway: Any = RecordedGateway()
    host = RecordedEpisodes(
        gateway=gateway, limits=limits(), settings=CallersAgent(), reward=None, is_scored_later=False
    )
    return AgentCollector(
        host=host,
        agent=FunctionAgent(do_nothing),
        find_task=lambda task: task.seed,
        timeout_s=60.0,
        in_flight=4,
        attempts=1,
        run_seed=0,
    )


def play(collector: Callable[[], GroupCollector], env: str = "bandit", **settings: Any) -> Played:
    config = settings_of(**settings)
    tasks = TaskSource(mix=(EnvMixEntry(env=env),), run_seed=0)
    return Played(
        tasks=tasks,
        results=TaskResults(tasks),
        collector=collector(),
        greedy=None,
        rewards=build_rewards(config.reward, config.rollout, JudgeRegistry(), str),
        select=partial(filter_groups, learner=make_learner(config), algo=config.algo, micro_tokens=1000),
        scale=config.algo.filter.rate_scale,
        count=2,
        group_size=3,
        refill=0,
        show=lambda phase, done, total: None,
    )


def store(folder: Path, **settings: Any) -> Stored:
    config, replay = settings_of(**settings), open_replay(folder, 100)
    for group in random_groups(groups=4, members=3):
        for trajectory in group.trajectories:
            replay.add(trajectory)
    return Stored(
        replay=replay,
        algo=config.algo,
        select=list,
        count=2,
        group_size=3,
        run_seed=0,
        show=lambda phase, done, total: None,
    )


def test_played_episodes_keep_the_contract() -> None:
    check_source(lambda: play(scripted_collector))
    check_source(lambda: play(agent_collector, env="agent"))


def test_filter_that_keeps_no_group_keeps_the_contract() -> None:
    check_source(lambda: play(scripted_collector, algo__filter="absolute", algo__filter__value=100.0))


def test_episodes_played_ahead_keep_the_contract() -> None:
    check_source(lambda: PlayedAhead(play(scripted_collector), max_staleness=1, steps=3, in_flight=4), steps=3)


@pytest.mark.parametrize("advantage", ["grpo", "preference", "gae"])
def test_stored_episodes_keep_the_contract(advantage: str, tmp_path: Path) -> None:
    folders = count()
    check_source(lambda: store(tmp_path / str(next(folders)), algo__advantage=advantage))


class Changed:
    """Changes the rollouts of a source."""

    def __init__(self, change: Callable[[Rollout], Rollout]) -> None:
        self._change = change

    async def groups(self, step: int) -> Rollout:
        return self._change(rollout_of(random_groups(step), step + 1))


def unscored(rollout: Rollout) -> Rollout:
    (first, *others) = rollout.groups
    members = tuple(
        replace(trajectory, turn_rewards=(math.nan,) * len(trajectory.turns)) for trajectory in first.trajectories
    )
    return replace(rollout, groups=[replace(first, trajectories=members), *others])


def of_other_tasks(rollout: Rollout) -> Rollout:
    first, second = rollout.groups
    return replace(rollout, groups=[replace(first, trajectories=second.trajectories), second])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda rollout: replace(rollout, number=7), "are those of step 1"),
        (lambda rollout: replace(rollout, groups=[], kept=[]), "a rollout has groups"),
        (lambda rollout: replace(rollout, groups=rollout.groups[1:]), "among those of the rollout"),
        (lambda rollout: replace(rollout, kept=[]), "says why, and only then"),
        (lambda rollout: replace(rollout, empty=IdleReason.FILTERED), "says why, and only then"),
        (lambda rollout: replace(rollout, kept_share=2.0), "kept_share is a share"),
        (lambda rollout: replace(rollout, rate_scale=-1.0), "rate_scale is a factor"),
        (lambda rollout: replace(rollout, counts=Counter(failed=math.nan)), "metrics of a rollout are finite"),
        (unscored, "rewards are finite"),
        (of_other_tasks, "the members of a group have its task"),
    ],
)
def test_check_source_names_the_broken_rule(change: Callable[[Rollout], Rollout], rule: str) -> None:
    check_source(lambda: Changed(lambda rollout: rollout))
    with pytest.raises(AssertionError, match=rule):
        check_source(lambda: Changed(change))


def test_check_source_finds_other_draws_in_an_equal_run() -> None:
    runs: Iterator[int] = count()

    def make() -> Source:
        return play(scripted_collector) if next(runs) == 0 else Changed(lambda rollout: rollout)

    with pytest.raises(AssertionError, match="draws the same tasks"):
        check_source(make)
