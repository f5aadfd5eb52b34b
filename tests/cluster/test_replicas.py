"""Engine replicas on a real Ray cluster: the same episodes as in this process, also when replicas are killed."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_lake_for_tests import GATE, SlowLake, open_gate

from ray_nodes_for_tests import restore_nodes
from runs_for_tests import small
from turnwise.algos.critics import HeadCriticSettings
from turnwise.config.resources import ClusterConfig
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.learner import Needs
from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.samples import build_samples
from turnwise.models.layers import copy_model
from turnwise.models.loading.load import LoadedModel
from turnwise.rollout.collect import GroupCollector
from turnwise.run.build import PolicyStack, build_policy_stack
from turnwise.run.build_learner import build_learner
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix, build_task_source
from turnwise.run.load_policy import load_policy
from turnwise.training.scores import sampler_values, score_samples

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
GROUP_SIZE = 8
MAX_FORKS = 2
"""Largest number of a test's episodes that may differ; with other weights most of them do."""
Address = tuple[int, int, int]
"""Seed of the task, member, attempt."""
SLOW_LAKE = f"{Path(__file__).parent / 'slow_lake_for_tests.py'}:{SlowLake.__name__}"


@dataclass
class World:
    session: Any
    config: Config
    environments: EnvironmentMix
    loaded: LoadedModel
    local: PolicyStack
    replicas: PolicyStack
    notes: list[str]

    @property
    def pool(self) -> Any:
        return self.replicas.engine

    def tasks(self, count: int, step: int) -> Sequence[Task]:
        return build_task_source(self.config, self.environments).draw(step, count)

    def pids(self) -> list[int]:
        return [int(each.where.rpartition(" ")[2]) for each in self.pool.replicas]


@pytest.fixture(scope="module")
def world(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same policy and environments in this process and in two replicas."""
    from turnwise.run.clustering import open_cluster, open_replica_stack

    restore_nodes(ray_cluster)
    folder = tmp_path_factory.mktemp("runs")
    cluster = {"cluster__engines": 2, "cluster__env_workers": 2, "cluster__placement": "disaggregated"}
    config = small(folder, env__kind=SLOW_LAKE, cluster__cpus=2, **cluster)
    environments = build_environment_mix(config.env, config.agent)
    loaded, _ = load_policy(config, environments, lambda done, total: None)
    notes: list[str] = []
    with (
        open_cluster(config) as session,
        open_replica_stack(session, config, environments, loaded, folder, notes.append) as replicas,
    ):
        local = build_policy_stack(config, environments, loaded)
        yield World(session, config, environments, loaded, local, replicas, notes)


def episodes(groups: Sequence[Group]) -> dict[Address, Trajectory]:
    """Return the episodes by address; an address that occurs twice fails."""
    rows = [((each.task.seed, each.member, each.attempt), each) for group in groups for each in group.trajectories]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def tokens(episode: Trajectory) -> list[tuple[int, float]]:
    """Return all ids with their log-probabilities, which are 0 for ids that were not sampled."""
    found: list[tuple[int, float]] = []
    for turn in episode.turns:
        found += [(each, 0.0) for each in turn.context_ids]
        found += zip(turn.action_ids, turn.action_logprobs, strict=True)
    return found


def count_forks(ours: Sequence[Group], theirs: Sequence[Group]) -> int:
    """Assert that both have the same episodes from the same start states; return how many continue differently.

    Batches of another composition change the last bits of probabilities, so that a sampled token can change where its
    random number is on the boundary of two tokens. Up to there, log-probabilities are equal to float tolerance.
    """
    first, second = episodes(ours), episodes(theirs)
    assert first.keys() == second.keys()
    forks = 0
    for address, episode in first.items():
        other = second[address]
        assert episode.turns[0].context_ids == other.turns[0].context_ids
        pairs = list(zip(tokens(episode), tokens(other), strict=False))
        end = next((i for i, (one, two) in enumerate(pairs) if one[0] != two[0]), len(pairs))
        forks += end < len(pairs) or len(tokens(episode)) != len(tokens(other))
        common = torch.tensor([[one[1], two[1]] for one, two in pairs[:end]])
        torch.testing.assert_close(common[:, 0], common[:, 1], atol=1e-4, rtol=0)
    return forks


def versions(groups: Sequence[Group]) -> set[int]:
    turns = [turn for group in groups for each in group.trajectories for turn in each.turns]
    return {version for turn in turns for version in turn.policy_versions}


async def collect(collector: GroupCollector, tasks: Sequence[Task], step: int = 0) -> tuple[Sequence[Group], Counter]:
    found = await collector.collect(tasks, group_size=GROUP_SIZE, round=step)
    return found.groups, found.counts


@asynccontextmanager
async def hold_moves(pids: Sequence[int]) -> AsyncIterator[None]:
    """Hold up all moves; enter once each of these processes has an episode that waits to move."""
    gate = Path(os.environ[GATE])
    gate.mkdir()
    try:
        while not all((gate / str(pid)).exists() for pid in pids):
            await asyncio.sleep(0.02)
        yield
    finally:
        open_gate()


def test_replicas_sample_the_tokens_of_the_local_engine(world: World) -> None:
    tasks = world.tasks(2, step=0)

    async def both() -> tuple[Any, Any]:
        await world.pool.publish(3, world.loaded.model)
        await world.local.engine.publish(3, world.loaded.model)
        return await collect(world.replicas.collector, tasks), await collect(world.local.collector, tasks)

    (remote, counts), (local, _) = asyncio.run(both())
    assert count_forks(remote, local) <= MAX_FORKS
    assert versions(remote) == {3}
    assert not counts


def test_replicas_share_the_episodes(world: World) -> None:
    async def busiest() -> list[int]:
        running = asyncio.create_task(collect(world.replicas.collector, world.tasks(2, step=0)))
        counts = [0]
        while sum(counts) < 2 * GROUP_SIZE:
            await asyncio.sleep(0)
            counts = [len(each.running) for each in world.pool.replicas]
        await running
        return counts

    assert asyncio.run(busiest()) == [GROUP_SIZE, GROUP_SIZE]


def test_publish_changes_what_replicas_sample(world: World) -> None:
    tasks, other = world.tasks(2, step=1), copy_model(world.loaded.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.05)

    async def run() -> tuple[Any, Any, Any]:
        await world.pool.publish(4, other)
        remote, _ = await collect(world.replicas.evaluator, tasks)
        await world.pool.publish(5, world.loaded.model)
        back, _ = await collect(world.replicas.evaluator, tasks)
        local, _ = await collect(world.local.evaluator, tasks)
        return remote, back, local

    remote, back, local = asyncio.run(run())
    assert versions(remote) == {4}
    assert episodes(remote).keys() == episodes(local).keys()
    changed = [tokens(episodes(remote)[each]) != tokens(episodes(local)[each]) for each in episodes(local)]
    assert sum(changed) > len(changed) / 2
    assert count_forks(back, local) <= MAX_FORKS


def test_publish_during_episodes_labels_tokens_with_both_versions(world: World) -> None:
    tasks = world.tasks(3, step=2)

    async def run() -> tuple[Any, Any]:
        await world.pool.publish(5, world.loaded.model)
        running = asyncio.create_task(collect(world.replicas.collector, tasks, 2))
        async with hold_moves(world.pids()):
            await world.pool.publish(6, world.loaded.model)
        return await running, await collect(world.local.collector, tasks, 2)

    (remote, counts), (local, _) = asyncio.run(run())
    assert not counts
    assert count_forks(remote, local) <= MAX_FORKS
    assert versions(remote) == {5, 6}
    for episode in episodes(remote).values():
        labels = [version for turn in episode.turns for version in turn.policy_versions]
        assert labels == sorted(labels)


def test_published_value_head_gives_values_with_the_tokens(world: World) -> None:
    tasks = world.tasks(2, step=3)
    learner = build_learner(world.config.algo, HeadCriticSettings(), world.config.train, world.loaded.model)
    with torch.no_grad():
        for number, parameter in enumerate(learner.value_head().values()):
            parameter.fill_(0.01 * (number + 1))

    async def run() -> Sequence[Group]:
        world.pool.publish_value_head(learner.value_head)
        await world.pool.publish(7, world.loaded.model)
        return (await collect(world.replicas.collector, tasks, 3))[0]

    groups = asyncio.run(run())
    trajectories = [each for group in groups for each in group.trajectories]
    scores = score_samples(build_samples(trajectories), learner, Needs(values=True), micro_tokens=4096)
    sampled = sampler_values(trajectories)
    assert sampled is not None
    assert torch.cat(sampled).std() > 0
    torch.testing.assert_close(torch.cat(sampled), torch.cat(scores["values"]), atol=1e-4, rtol=0)


def test_session_reports_missing_node_resources(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from turnwise.cluster import session

    settings = ClusterConfig(engines=1, learners=2, placement="disaggregated", cpus=3)
    monkeypatch.setattr(session, "WAIT_S", 0.1)
    pattern = r"need 3 x \(3 CPU, 0 GPU\), and there is room for 0: [0-9.:]+ has 2 CPU, 0 GPU; "
    with pytest.raises(UserError, match=pattern), session.open_session(settings, gpus_per_engine=0):
        pass


@pytest.mark.parametrize("kill", range(1 if SOAK == 1 else 8))
def test_killed_replica_loses_and_doubles_no_episode(world: World, kill: int) -> None:
    tasks, step = world.tasks(3, step=10 + kill), 10 + kill
    world.notes.clear()

    async def run() -> tuple[Any, Any, Any]:
        await world.pool.publish(step, world.loaded.model)
        running = asyncio.create_task(collect(world.replicas.collector, tasks, step))
        async with hold_moves(world.pids()):
            os.kill(world.pids()[kill % 2], signal.SIGKILL)
        remote, counts = await running
        while not all(each.live for each in world.pool.replicas):
            await asyncio.sleep(0.1)
        again, _ = await collect(world.replicas.collector, tasks, step)
        return remote, counts, again

    remote, counts, again = asyncio.run(run())
    local, _ = asyncio.run(collect(world.local.collector, tasks, step))
    assert counts["infra_errors"] > 0
    assert not counts["dropped"]
    assert count_forks(remote, local) <= MAX_FORKS
    assert count_forks(again, local) <= MAX_FORKS  # the new replica too has the published weights
    assert versions(again) == {step}
    (note,) = world.notes
    assert note.startswith(f"engine replica {kill % 2} (")
    assert f"its {counts['infra_errors']} running episodes are retried" in note


def test_killed_environment_worker_loses_and_doubles_no_episode(world: World, tmp_path: Path) -> None:
    from turnwise.run.clustering import open_env_workers

    tasks, step, notes = world.tasks(3, step=30), 30, list[str]()

    async def run(workers: Any) -> tuple[Any, Any]:
        await world.pool.publish(step, world.loaded.model)
        collector = replace(world.replicas.collector, workers=workers)  # type: ignore[type-var]
        running = asyncio.create_task(collect(collector, tasks, step))
        pids = [int(each.where.rpartition(" ")[2]) for each in workers.workers]
        async with hold_moves(pids):
            assert {int(each.name) for each in Path(os.environ[GATE]).iterdir()} == set(pids)  # and not the replicas'
            os.kill(pids[1], signal.SIGKILL)
        return await running

    with open_env_workers(world.session, world.config, world.environments, tmp_path, notes.append) as workers:
        remote, counts = asyncio.run(run(workers))
    local, _ = asyncio.run(collect(world.local.collector, tasks, step))
    assert counts["infra_errors"] > 0
    assert not counts["dropped"]
    assert count_forks(remote, local) <= MAX_FORKS
    (note,) = notes
    assert note.startswith("environment worker 1 (")
    assert f"its {counts['infra_errors']} running episodes are retried" in note
