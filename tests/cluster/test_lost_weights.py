"""Replicas whose weights are lost with the node of learner rank 0. Fake actors: a real cluster loses them by chance."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_session_for_tests import fake_session

from turnwise.core.errors import InfrastructureFailure, LearnerLost
from turnwise.core.protocols import EngineStats
from turnwise.core.task import EpisodeKey, Task

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError, ObjectLostError, RayTaskError

from turnwise.cluster import actor_pool
from turnwise.cluster.engine_replica import EpisodeJob, FinishedJobs
from turnwise.cluster.replica_pool import ReplicaPool
from turnwise.cluster.session import process_info
from turnwise.cluster.weights import RemoteWeights, StoredWeights

KEY = EpisodeKey(run_seed=0, task=Task(env="bandit", seed=1), member=0, round=0, attempt=0)
FROZEN = StoredWeights("frozen")
LOST, KEPT = (RemoteWeights(trained=StoredWeights(ref), frozen=FROZEN) for ref in ("lost", "kept"))


class Method:
    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.remote = call


class FakeActor:
    """An engine replica that answers each job with the version of its weights."""

    def __init__(self, lost: set[Any]) -> None:
        self.lost, self.version, self.jobs = lost, -1, list[EpisodeJob]()
        self.dead = False
        for name in ("start", "collect", "publish"):
            setattr(self, name, Method(getattr(self, f"_{name}")))
        self.submit = SimpleNamespace(remote=lambda jobs, cancelled: self.jobs.extend(jobs))

    async def _start(self, build: Any) -> Any:
        return process_info()

    async def _publish(self, version: int, trained: Any, frozen: Any, value_head: Any) -> None:
        await asyncio.sleep(0)
        if trained in self.lost or frozen in self.lost:
            cause = ObjectLostError("00" * 28, None, "")
            raise RayTaskError("publish", "traceback", cause)
        self.version = version

    async def _collect(self) -> FinishedJobs:
        while not self.jobs and not self.dead:
            await asyncio.sleep(0.001)
        if self.dead:
            raise ActorDiedError
        jobs, self.jobs = self.jobs, []
        results = [(job.number, pickle.dumps([self.version])) for job in jobs]
        return FinishedJobs(results=results, images=set(), stats=EngineStats())


class Cluster:
    """A pool of fake replicas."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replicas: int) -> None:
        self.actors: list[FakeActor] = []
        self.lost: set[Any] = set()
        monkeypatch.setattr(ReplicaPool, "_launch", lambda pool, slot: self._launch())
        ray = SimpleNamespace(get=lambda calls, timeout: [asyncio.run(each) for each in calls])
        monkeypatch.setattr(actor_pool, "ray", ray)
        session = fake_session(engines=replicas, kill=self._kill)
        self.notes: list[str] = []
        self.pool = ReplicaPool(
            session, lambda: pytest.fail("not here"), timeout_s=60, images=None, note=self.notes.append
        )

    def _launch(self) -> FakeActor:
        self.actors.append(FakeActor(self.lost))
        return self.actors[-1]

    def _kill(self, actor: FakeActor) -> None:
        actor.dead = True

    async def versions(self, episodes: int) -> list[Any]:
        """Return the versions of the weights that answer as many episodes."""
        found = await asyncio.gather(*(self._retry() for _ in range(episodes)))
        return [version for (version,) in found]

    async def _retry(self) -> Any:
        while True:
            try:
                return await self.pool.run("training", [KEY])
            except InfrastructureFailure:
                continue


def run(scenario: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(scenario, 60)

    return asyncio.run(limited())


def test_replica_without_weights_waits_for_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, replicas=2)

    async def scenario() -> tuple[list[Any], list[bool], list[Any]]:
        await cluster.pool.publish(1, LOST)
        cluster.lost.add("lost")
        cluster.actors[0].dead = True
        first = await cluster.versions(4)
        await asyncio.sleep(0.02)
        live = [each.live for each in cluster.pool.replicas]
        await cluster.pool.publish(2, KEPT)
        await asyncio.sleep(0.02)
        return first, live, await cluster.versions(4)

    first, live, second = run(scenario())
    assert (first, live) == ([1] * 4, [False, True])
    assert second == [2] * 4
    assert all(each.live for each in cluster.pool.replicas)
    assert not any("given up" in note for note in cluster.notes)


@pytest.mark.parametrize("lost", ["lost", "frozen"])
def test_learner_is_lost_if_no_replica_has_its_weights(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    cluster = Cluster(monkeypatch, replicas=1)

    async def scenario() -> list[Any]:
        await cluster.pool.publish(1, LOST)
        cluster.lost.add(lost)
        cluster.actors[0].dead = True
        with pytest.raises(LearnerLost, match="weights were lost"):
            await cluster.versions(1)
        restarted = RemoteWeights(trained=StoredWeights("new"), frozen=StoredWeights("new frozen"))
        await cluster.pool.publish(1, restarted)
        return await cluster.versions(2)

    assert run(scenario()) == [1, 1]


def test_replica_that_has_frozen_weights_needs_them_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, replicas=1)

    async def scenario() -> list[Any]:
        await cluster.pool.publish(1, LOST)
        cluster.lost.add("frozen")
        await cluster.pool.publish(2, KEPT)
        return await cluster.versions(1)

    assert run(scenario()) == [2]


def test_weights_lost_during_publication_are_a_lost_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, replicas=1)
    cluster.lost.add("lost")
    with pytest.raises(LearnerLost):
        run(cluster.pool.publish(1, LOST))


def test_results_lost_with_their_node_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, replicas=1)

    async def lose() -> FinishedJobs:
        raise ObjectLostError("00" * 28, None, "")

    async def scenario() -> list[Any]:
        await cluster.pool.publish(3, KEPT)
        cluster.actors[0].collect = Method(lose)  # type: ignore[attr-defined]
        return await cluster.versions(2)

    assert run(scenario()) == [3, 3]
    assert len(cluster.actors) == 2


def test_error_of_a_replica_reaches_jobs_beside_a_cancelled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, replicas=1)

    async def fail() -> FinishedJobs:
        raise ValueError("bug")

    async def scenario() -> None:
        cancelled, waiting = (asyncio.get_running_loop().create_future() for _ in range(2))
        cancelled.cancel()
        (replica,) = cluster.pool.replicas
        replica.running = {0: cancelled, 1: waiting}
        cluster.actors[0].collect = Method(fail)  # type: ignore[attr-defined]
        await cluster.pool._pump(replica)
        with pytest.raises(ValueError, match="bug"):
            await waiting

    run(scenario())
