"""Ray kills an actor because its node runs out of memory: a loss like any other."""

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

pytest.importorskip("ray")

from fake_session_for_tests import fake_session
from ray.exceptions import OutOfMemoryError

from turnwise.cluster import learners
from turnwise.cluster.actor_pool import ActorLost, ActorPool
from turnwise.cluster.env_worker import EnvLease, EnvWorkerLost
from turnwise.cluster.learners import RemoteLearner
from turnwise.cluster.session import start_error
from turnwise.core.errors import LearnerLost
from turnwise.core.messages import assistant
from turnwise.core.task import Task

KILLED = OutOfMemoryError("1 worker(s) were killed due to the node running low on memory.\nTop 10 memory users: ...")
REASON = "its node has too little memory, so Ray killed it"


async def fail(*_: object) -> NoReturn:
    raise KILLED


def test_actor_without_memory_at_its_start_is_reported_in_one_line() -> None:
    assert str(start_error("A learner rank", KILLED)) == f"A learner rank died while it started ({REASON})."


def test_rank_without_memory_is_a_lost_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(calls: object) -> NoReturn:
        raise KILLED

    monkeypatch.setattr(RemoteLearner, "_start", lambda learner, attempts: setattr(learner, "actors", []))
    monkeypatch.setattr(learners, "ray", SimpleNamespace(wait=lambda calls, **limits: (calls, []), get=get))
    with pytest.raises(LearnerLost, match=REASON):
        RemoteLearner(fake_session(), pytest.fail, None)._wait([object()])


def test_pooled_actor_without_memory_is_lost() -> None:
    with pytest.raises(ActorLost, match=REASON):
        asyncio.run(ActorPool._call(fail(), 60.0))


def test_environment_worker_without_memory_is_lost() -> None:
    actor: Any = SimpleNamespace(step_env=SimpleNamespace(remote=fail))
    env = EnvLease(actor=actor, number=0).make(Task(env="test", seed=0))
    with pytest.raises(EnvWorkerLost, match=REASON):
        asyncio.run(env.step(assistant("hi")))
