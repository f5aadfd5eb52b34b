"""Weights that are published to engine replicas: frozen ones are sent once to each actor. Replicas in this process."""

import asyncio
import pickle
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("ray")

from fake_session_for_tests import fake_session

from ranks_for_tests import config_of, local_learner
from turnwise.cluster import actor_pool, learners, weights
from turnwise.cluster.actor_pool import ActorLost
from turnwise.cluster.engine_replica import EngineReplica, ReplicaParts
from turnwise.cluster.learners import LearnerRank, RemoteLearner
from turnwise.cluster.replica_pool import ReplicaPool
from turnwise.models.weights import copy_parameters
from visual_policies_for_tests import (
    FROZEN_TOWERS,
    IMAGES,
    POLICIES,
    FeatureCount,
    change_trained,
    equal_parameters,
    policy_of,
)
from visual_talks_for_tests import engine_of, renderer_of


@dataclass(frozen=True)
class Stored:
    """An object in the object store."""

    data: bytes


def get(ref: Any) -> Any:
    return pickle.loads(ref.data) if isinstance(ref, Stored) else ref


class LocalActor:
    """An engine replica in this process, with other weights than the learner's."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded = policy_of(kind, seed=7)
        self.loaded.model.requires_grad_(False)
        self.features = FeatureCount(self.loaded.model, monkeypatch)
        self._replica = EngineReplica(threads=1)
        for name in ("start", "publish"):
            setattr(self, name, SimpleNamespace(remote=partial(self._call, name)))

    async def _call(self, name: str, *arguments: Any) -> Any:
        return await getattr(self._replica, name)(*map(get, arguments))

    def build(self) -> ReplicaParts:
        async def close() -> None: ...

        self.engine: Any = engine_of(self.loaded, renderer_of(self.loaded))
        return ReplicaParts(engine=self.engine, collectors={}, close=close, load_value_head=pytest.fail, images=None)


class LocalPool:
    """A pool of local replicas, and the bytes that were put into the object store."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch, replicas: int = 2) -> None:
        self.actors: list[LocalActor] = []
        self.stored = 0

        def launch(pool: ReplicaPool, slot: Any) -> LocalActor:
            self.actors.append(LocalActor(kind, monkeypatch))
            return self.actors[-1]

        def put(value: Any) -> Stored:
            found = Stored(pickle.dumps(value))
            self.stored += len(found.data)
            return found

        monkeypatch.setattr(ReplicaPool, "_launch", launch)
        ray = SimpleNamespace(get=lambda calls, timeout: [asyncio.run(each) for each in calls])
        monkeypatch.setattr(actor_pool, "ray", ray)
        monkeypatch.setattr(weights, "ray", SimpleNamespace(put=put, get=get))
        built = iter(range(10))
        self.pool = ReplicaPool(
            fake_session(engines=replicas),
            lambda: self.actors[next(built)].build(),
            timeout_s=60,
            images=None,
            note=lambda text: None,
        )

    async def publish(self, version: int, learner: Any) -> tuple[list[int], int]:
        """Publish; return how many features each live replica then computes, and the bytes that were stored."""
        self.stored = 0
        await self.pool.publish(version, learner)
        return self.count(learner), self.stored

    def count(self, learner: Any) -> list[int]:
        live: list[LocalActor] = [each.actor for each in self.pool.replicas]
        assert all(equal_parameters(each.loaded.model, learner) for each in live)
        return [each.features.count(learner) for each in live]

    async def replace_first(self) -> None:
        replica = self.pool.replicas[0]
        self.pool._lose(replica, replica.actor, ActorLost("killed"))
        assert replica.reviver is not None
        await replica.reviver
        assert replica.live


@pytest.mark.parametrize("kind", POLICIES)
def test_replicas_get_frozen_weights_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, learner = LocalPool(kind, monkeypatch), policy_of(kind).model
    every, none = [len(IMAGES)] * 2, [0, 0]

    async def scenario() -> None:
        found, complete = await cluster.publish(0, learner)
        assert found == every
        for replica in cluster.pool.replicas:  # their answers to `collect` have them
            replica.stats = replica.actor.engine.stats()
        assert cluster.pool.stats().published_bytes == 2 * sum(each.nbytes for each in learner.parameters())
        change_trained(learner)
        found, stored = await cluster.publish(1, learner)
        assert found == (none if kind in FROZEN_TOWERS else every)
        frozen = sum(each.nbytes for each in learner.parameters() if not each.requires_grad)
        assert complete - stored == pytest.approx(frozen, rel=0.1, abs=100)
        await cluster.replace_first()
        assert cluster.count(learner) == [len(IMAGES), 0]
        change_trained(learner)
        found, stored = await cluster.publish(2, learner)
        assert found == (none if kind in FROZEN_TOWERS else every)
        assert stored <= complete - frozen
        copy_parameters(learner, policy_of(kind, seed=1).model)  # a checkpoint
        assert await cluster.publish(3, learner) == (every, pytest.approx(complete, rel=0.01))

    asyncio.run(scenario())


class LocalRank:
    """A learner rank in this process."""

    def __init__(self) -> None:
        rank, learner = LearnerRank(threads=1), local_learner(config_of("lora"))
        rank._rank, rank._learner = 0, learner
        self.model, self.packed = learner.model, list[bool]()

        def pack(*, trained: bool) -> list[Any]:
            self.packed.append(trained)
            return [Stored(pickle.dumps(each)) for each in rank.pack_weights(trained=trained)]

        self.pack_weights = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=pack))
        self.load_weights = SimpleNamespace(remote=lambda packed: rank.load_weights(get(packed)))


def test_ranks_send_frozen_weights_once_until_others_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "send_tensors_as_arrays", lambda: None)
    monkeypatch.setattr(RemoteLearner, "_launch", lambda learner, rank, slot: LocalRank())
    monkeypatch.setattr(RemoteLearner, "_join_and_build", lambda learner: None)
    monkeypatch.setattr(RemoteLearner, "_wait", lambda learner, calls, activity: calls)
    monkeypatch.setattr(RemoteLearner, "close", lambda learner: None)
    monkeypatch.setattr(weights, "ray", SimpleNamespace(put=lambda value: Stored(pickle.dumps(value)), get=get))
    learner = RemoteLearner(fake_session(learners=1), pytest.fail, None)

    def publish() -> list[bool]:
        """Check that the weights are the rank's; return the parts of them that it packs."""
        (rank,) = learner.actors
        rank.packed.clear()
        found, expected = dict(learner.weights().named_parameters()), dict(rank.model.named_parameters())
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], each) for name, each in expected.items())
        return rank.packed

    assert publish() == [False, True]
    change_trained(learner.actors[0].model)
    assert publish() == [True]
    other = local_learner(config_of("lora")).model
    for parameter in other.parameters():
        torch.nn.init.ones_(parameter)
    learner.load_weights(other)
    assert publish() == [False, True]
    learner.restart()
    assert publish() == [False, True]
