"""Asynchronous training: steps that start early, and a learner in a thread of its own."""

import asyncio
import json
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from episodes_for_tests import group_of, turn_of
from learners_for_tests import settings_of
from turnwise.core.task import Task
from turnwise.core.trajectory import Group
from turnwise.record.metrics import staleness_metrics
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rollout.collect import CollectedGroups
from turnwise.rollout.tasks import Curriculum, EnvMixEntry, TaskSource, task_name
from turnwise.run.build import build_rewards
from turnwise.training.learner_thread import LearnerThread
from turnwise.training.sources.played import Played, TaskResults
from turnwise.training.sources.played_ahead import PlayedAhead

STEPS = 6
TASKS = TaskSource(mix=(EnvMixEntry(env="test"),), run_seed=0)


class SlowCollector:
    """Returns the groups of a step when the test lets it."""

    tasks_per_match = 1

    def __init__(self) -> None:
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.tasks: dict[int, list[Task]] = {}
        self.gates: list[Any] = []
        self.may_end = {step: asyncio.Event() for step in range(STEPS)}

    async def collect(
        self, tasks: list[Task], *, group_size: int, round: int, gate: Any = None, progress: Any, **_: Any
    ) -> CollectedGroups:
        self.started.append(round)
        self.tasks.setdefault(round, []).extend(tasks)
        self.gates.append(gate)
        progress(1, len(tasks) * group_size)
        try:
            await self.may_end[round].wait()
        except asyncio.CancelledError:
            self.cancelled.append(round)
            raise
        member = [turn_of([3] * 9, [4, 5], extends=False)]
        made = group_of([member] * group_size).trajectories
        return CollectedGroups(groups=tuple(Group(task=each, trajectories=made) for each in tasks), counts=Counter())


def make_source(collector: SlowCollector, staleness: int, curriculum: Curriculum | None = None) -> PlayedAhead:
    config = settings_of()
    tasks = TaskSource(mix=(EnvMixEntry(env="test"),), run_seed=0, curriculum=curriculum)
    played = Played(
        tasks=tasks,
        results=TaskResults(tasks),
        collector=collector,  # type: ignore[arg-type]
        greedy=None,
        rewards=build_rewards(config.reward, config.rollout, JudgeRegistry(), str),
        select=list,
        scale=lambda share: 1.0,
        count=2,
        group_size=3,
        refill=0,
        show=lambda phase, done, total: None,
    )
    return PlayedAhead(played, max_staleness=staleness, steps=STEPS, in_flight=5)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_source_starts_no_step_beyond_the_staleness_bound(staleness: int) -> None:
    async def scenario() -> None:
        collector = SlowCollector()
        source = make_source(collector, staleness)
        for done in range(STEPS):
            await source.finish(done)
            await settle()
            assert collector.started == list(range(min(done + staleness + 1, STEPS)))
            collector.may_end[done].set()
            await source.groups(done)
        assert len({id(gate) for gate in collector.gates}) == 1, "all steps share the limit of episodes in flight"

    asyncio.run(scenario())


def test_steps_train_on_their_own_tasks_whatever_ends_first() -> None:
    """Neither dropped nor preferred for their length: step n gets the tasks of the synchronous step n, all of them."""

    async def scenario() -> None:
        collector = SlowCollector()
        source = make_source(collector, 2)
        await source.begin(0)
        await settle()
        for step in (2, 1, 0):  # the last one is ready first
            collector.may_end[step].set()
            await settle()
        for step in range(3):
            found = await source.groups(step)
            assert [group.task for group in found.groups] == TASKS.draw(step, 2)
        assert collector.started == [0, 1, 2], "none was rolled out again"

    asyncio.run(scenario())


def test_cancelled_step_keeps_its_rollouts() -> None:
    async def scenario() -> None:
        collector = SlowCollector()
        source = make_source(collector, 1)
        await source.begin(0)
        waiting = asyncio.create_task(source.groups(0))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert collector.cancelled == []
        await source.close()
        assert collector.cancelled == [0, 1]
        collector.may_end[0].set()
        await source.groups(0)
        assert collector.started == [0, 1, 0]

    asyncio.run(scenario())


def test_failure_of_a_later_step_is_raised_when_it_is_due() -> None:
    async def scenario() -> None:
        collector = SlowCollector()
        del collector.may_end[1]  # a KeyError, as any bug would be
        source = make_source(collector, 1)
        await source.begin(0)
        await settle()
        collector.may_end[0].set()
        await source.groups(0)
        with pytest.raises(KeyError):
            await source.groups(1)

    asyncio.run(scenario())


def test_resumed_curriculum_draws_the_started_tasks_again() -> None:
    """Tasks of a started step were drawn with the results of that time, not with those of the checkpoint."""
    curriculum = Curriculum(pool=40)
    solved = {
        task_name(task.env, task.seed): (10.0, 10.0)
        for step in range(STEPS)
        for task in TaskSource(mix=(EnvMixEntry(env="test"),), run_seed=0, curriculum=curriculum).draw(step, 2)
    }

    async def drawn(success_counts: Any, started: Any) -> tuple[dict[int, list[Task]], Any]:
        collector = SlowCollector()
        source = make_source(collector, 2, curriculum)
        source._played.results.counts = success_counts
        source.load_state(started)
        await source.begin(1)
        await settle()
        state = json.loads(json.dumps(source.state()))
        await source.close()
        return collector.tasks, state

    before, recorded = asyncio.run(drawn({}, {}))
    assert set(recorded) == {"1", "2", "3"}
    assert asyncio.run(drawn(solved, recorded))[0] == before
    assert asyncio.run(drawn(solved, {}))[0] != before


def test_restart_plays_the_started_steps_again() -> None:
    """After a rollback they are played with the restored weights."""

    async def scenario() -> None:
        collector = SlowCollector()
        source = make_source(collector, 1)
        await source.begin(0)
        await settle()
        source.restart()
        await source.finish(0)
        await settle()
        assert collector.cancelled == [0, 1] and collector.started == [0, 1, 0, 1]
        await source.close()
        assert collector.cancelled == [0, 1, 0, 1]

    asyncio.run(scenario())


def test_learner_thread_finishes_its_step_when_cancelled() -> None:
    go_on, results = threading.Event(), list[str]()

    async def scenario() -> None:
        thread = LearnerThread()

        async def step() -> None:
            results.append(await thread.run(lambda: (go_on.wait(60), threading.current_thread().name)[1]))

        running = asyncio.create_task(step())
        await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.sleep(0.01)
        assert not running.done() and thread.cancelled
        go_on.set()
        await running

    asyncio.run(scenario())
    assert results and results[0] != threading.main_thread().name


def test_learner_thread_passes_errors_on() -> None:
    def fail() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(LearnerThread().run(fail))


def test_staleness_counts_versions_since_sampling() -> None:
    turns = [replace(turn_of([3], [4, 5], extends=False), policy_versions=versions) for versions in ((5, 5), (5, 7))]
    groups = [group_of([[turn] for turn in turns])]
    assert staleness_metrics(groups, version=7) == {"rollout/staleness": 1.5, "rollout/staleness_max": 2.0}
    assert staleness_metrics([group_of([[turn_of([3], [4], extends=False)]] * 2)], version=7) == {}
