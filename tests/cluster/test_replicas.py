"""Engine replicas on a real Ray cluster: the same episodes as in this process, also when replicas are killed."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_lake_for_tests import SlowLake

from runs_for_tests import small
from turnwise.config.schema import Config
from turnwise.core.task import Task
from turnwise.core.trajectory import Group
from turnwise.models.layers import copy_model
from turnwise.models.loading.load import LoadedModel
from turnwise.recipes.build import PolicyStack, build_policy_stack, load_policy
from turnwise.recipes.environment_mix import EnvironmentMix, build_environment_mix, build_task_source
from turnwise.rollout.collect import GroupCollector

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
GROUP_SIZE = 8
SLOW_LAKE = f"{Path(__file__).parent / 'slow_lake_for_tests.py'}:{SlowLake.__name__}"


@dataclass
class World:
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
    from turnwise.recipes.clustering import open_cluster, open_replica_stack

    folder = tmp_path_factory.mktemp("runs")
    config = small(folder, env__kind=SLOW_LAKE, cluster__engines=2, cluster__placement="disaggregated", cluster__cpus=2)
    environments = build_environment_mix(config)
    loaded, _ = load_policy(config, environments, lambda done, total: None)
    notes: list[str] = []
    with (
        open_cluster(config) as session,
        open_replica_stack(session, config, environments, loaded, folder, notes.append) as replicas,
    ):
        local = build_policy_stack(config, environments, loaded)
        yield World(config, environments, loaded, local, replicas, notes)


def episodes(groups: Sequence[Group]) -> dict[Any, list[tuple[tuple[int, ...], ...]]]:
    """Return the tokens of each episode by its address; an address that occurs twice fails."""
    rows = [
        ((each.task.seed, each.member, each.attempt), [(turn.context_ids, turn.action_ids) for turn in each.turns])
        for group in groups
        for each in group.trajectories
    ]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def versions(groups: Sequence[Group]) -> set[int]:
    turns = [turn for group in groups for each in group.trajectories for turn in each.turns]
    return {version for turn in turns for version in turn.policy_versions}


async def collect(collector: GroupCollector, tasks: Sequence[Task], step: int = 0) -> tuple[Sequence[Group], Counter]:
    found = await collector.collect(tasks, group_size=GROUP_SIZE, round=step)
    return found.groups, found.counts


def test_replicas_sample_the_tokens_of_the_local_engine(world: World) -> None:
    tasks = world.tasks(2, step=0)

    async def both() -> tuple[Any, Any]:
        await world.pool.publish(3, world.loaded.model)
        await world.local.engine.publish(3, world.loaded.model)
        return await collect(world.replicas.collector, tasks), await collect(world.local.collector, tasks)

    (remote, counts), (local, _) = asyncio.run(both())
    assert episodes(remote) == episodes(local)
    assert versions(remote) == {3}
    assert not counts
    logprobs = [
        torch.tensor(
            [
                value
                for group in groups
                for each in group.trajectories
                for turn in each.turns
                for value in turn.action_logprobs
            ]
        )
        for groups in (remote, local)
    ]
    torch.testing.assert_close(*logprobs, atol=1e-4, rtol=0)


def test_replicas_share_the_episodes(world: World) -> None:
    async def busiest() -> list[int]:
        running = asyncio.create_task(collect(world.replicas.collector, world.tasks(2, step=0)))
        await asyncio.sleep(0.05)
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
    assert episodes(remote) != episodes(local)
    assert episodes(back) == episodes(local)


@pytest.mark.parametrize("kill", range(1 if SOAK == 1 else 8))
def test_killed_replica_loses_and_doubles_no_episode(world: World, kill: int) -> None:
    tasks, step = world.tasks(3, step=10 + kill), 10 + kill
    world.notes.clear()

    async def run() -> tuple[Any, Any, Any]:
        await world.pool.publish(step, world.loaded.model)
        running = asyncio.create_task(collect(world.replicas.collector, tasks, step))
        await asyncio.sleep(0.15)
        os.kill(world.pids()[kill % 2], signal.SIGKILL)
        remote, counts = await running
        while not all(each.live for each in world.pool.replicas):
            await asyncio.sleep(0.1)
        again, _ = await collect(world.replicas.collector, tasks, step)
        return remote, counts, again

    remote, counts, again = asyncio.run(run())
    local, _ = asyncio.run(collect(world.local.collector, tasks, step))
    assert counts["infra_errors"] > 0
    assert not counts["members_given_up"]
    assert episodes(remote) == episodes(local)
    assert episodes(again) == episodes(local)  # the new replica too has the published weights
    assert versions(again) == {step}
    (note,) = world.notes
    assert note.startswith(f"engine replica {kill % 2} (")
    assert f"its {counts['infra_errors']} running episodes are retried" in note
