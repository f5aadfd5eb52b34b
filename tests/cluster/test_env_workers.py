"""Environments on workers: real workers behind fake Ray actors of this process. test_replicas.py has real ones."""

import asyncio
import math
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from fake_session_for_tests import fake_session
from ray.exceptions import ActorDiedError

from episodes_for_tests import context, key_of, limits, says, task_of
from turnwise.cluster import actor_pool
from turnwise.cluster.env_worker import EnvWorker, WorkerParts
from turnwise.cluster.env_worker_pool import EnvWorkerPool, WorkerCollector
from turnwise.concurrency.loop_clock import LoopClock, current_clock
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage
from turnwise.core.messages import Message, assistant, user
from turnwise.core.protocols import Env, MakeEnv, Observation, StepResult
from turnwise.core.task import Task
from turnwise.core.trajectory import Group
from turnwise.envs.registry import load_spec
from turnwise.rollout.collect import Collector
from virtual_time_for_tests import block, follow_virtual_time, run_in_virtual_time

TIMEOUT_S = 60.0
MOVES = says("<answer>Right</answer>", "<answer>Down</answer>")
TASKS = [task_of("frozen_lake", index, slippery=True) for index in range(2)]


class FakeActor:
    """A worker in this process that dies before its call number `dies_at`."""

    def __init__(self, dies_at: float) -> None:
        self.worker, self.dies_at, self.calls = EnvWorker(TIMEOUT_S), dies_at, count()
        self.start = SimpleNamespace(remote=self.worker.start)
        for name in ("open_env", "step_env", "close_env"):
            setattr(self, name, SimpleNamespace(remote=self._method(getattr(self.worker, name))))

    def _method(self, call: Callable[..., Awaitable[bytes]]) -> Callable[..., asyncio.Future[bytes]]:
        async def answer(arguments: Sequence[Any]) -> bytes:
            if next(self.calls) >= self.dies_at:
                raise ActorDiedError
            return await call(*arguments)

        return lambda *arguments: asyncio.ensure_future(answer(arguments))


class Workers:
    """A pool of fake actors, of which the first ones die before their call number `dies_at`."""

    def __init__(self, patch: pytest.MonkeyPatch, make_env: MakeEnv, *, number: int = 2, dies_at: Sequence[int] = ()):
        self.actors: list[FakeActor] = []
        self.notes: list[str] = []
        patch.setattr(EnvWorkerPool, "_launch", lambda pool, slot: self._launch(dies_at))
        ray = SimpleNamespace(get=lambda calls, timeout: [asyncio.run(each) for each in calls])
        patch.setattr(actor_pool, "ray", ray)
        parts = WorkerParts(make_env=make_env, close=self._close)
        self.pool = EnvWorkerPool(
            fake_session(env_workers=number), lambda: parts, timeout_s=TIMEOUT_S, note=self.notes.append
        )
        follow_virtual_time(patch)

    def _launch(self, dies_at: Sequence[int]) -> FakeActor:
        number = len(self.actors)
        self.actors.append(FakeActor(dies_at[number] if number < len(dies_at) else math.inf))
        return self.actors[-1]

    async def _close(self) -> None: ...

    @property
    def held(self) -> int:
        """Number of environments that are not closed."""
        return sum(len(each.worker._held) for each in self.actors)


def local_collector(make_env: MakeEnv) -> Collector:
    return Collector(
        policy=MOVES,
        make_env=make_env,
        context=context(),
        limits=limits(timeout_s=TIMEOUT_S),
        in_flight=8,
        attempts=3,
        run_seed=0,
    )


def on_workers(workers: Workers) -> WorkerCollector:
    def never(task: Task, member: int, attempt: int) -> Env:
        raise AssertionError("an environment was made beside the engine")

    return WorkerCollector(collector=local_collector(never), workers=workers.pool, in_flight=8, attempts=3, run_seed=0)


def said(groups: Sequence[Group]) -> list[Any]:
    """Return all observations and rewards of the environments."""
    return [
        (each.member, each.attempt, [(turn.context_ids, turn.reward, turn.info) for turn in each.turns], each.status)
        for group in groups
        for each in group.trajectories
    ]


LAKE = load_spec("frozen_lake").make
"""Moves slip, so what an environment says depends on its randomness."""


def local_episodes() -> list[Any]:
    return said(run_in_virtual_time(local_collector(LAKE).collect(TASKS, group_size=4, round=0)).groups)


def test_worker_environments_equal_those_beside_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch, LAKE)
    found = run_in_virtual_time(on_workers(workers).collect(TASKS, group_size=4, round=0))
    assert said(found.groups) == local_episodes()
    assert not found.counts and not workers.notes
    assert [next(each.calls) > 8 for each in workers.actors] == [True, True]
    assert workers.held == 0


def test_lost_worker_is_replaced_and_its_episodes_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch, LAKE, dies_at=[9])
    found = run_in_virtual_time(on_workers(workers).collect(TASKS, group_size=4, round=0))
    assert said(found.groups) == local_episodes()  # also the attempt, and with it the randomness
    assert found.counts == {"infra_errors": 4}
    (note,) = workers.notes
    assert note.startswith("environment worker 0 (")
    assert note.endswith("It is replaced, and its 4 running episodes are retried.")
    assert len(workers.actors) == 3


def test_worker_that_dies_always_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch, LAKE, number=1, dies_at=[0] * 100)
    collector = replace(on_workers(workers), attempts=10)
    with pytest.raises(Outage, match="All environment workers are lost"):
        run_in_virtual_time(collector.collect(TASKS[:1], group_size=1, round=0))
    assert len(workers.actors) == actor_pool.MAX_LOSSES


class Scripted:
    """An environment whose step runs `work`."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self.work = work
        self.closed = 0

    async def start(self) -> Observation:
        return Observation(messages=(user("Go."),))

    async def step(self, action: Message) -> StepResult:
        return StepResult(info={"found": await self.work()}, terminated=True)

    async def close(self) -> None:
        self.closed += 1


async def fail() -> None:
    raise RuntimeError("it broke")


async def wait_forever() -> None:
    await asyncio.sleep(1e9)


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (fail, EnvironmentFailure, "the environment's step raised RuntimeError: it broke"),
        (wait_forever, InfrastructureFailure, r"Timed out after rollout\.timeout_s 60 s, waiting for the environment"),
    ],
)
def test_failure_on_a_worker_reaches_the_episode(
    work: Callable[[], Awaitable[Any]], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Scripted(work)
    workers = Workers(monkeypatch, lambda task, member, attempt: env)
    with pytest.raises(error, match=message):
        run_in_virtual_time(on_workers(workers).episodes([key_of(TASKS[0])]))
    assert (workers.held, env.closed) == (0, 1)


def test_lease_of_a_failed_episode_closes_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine, which would close it, may be lost. A running step is cancelled."""
    env = Scripted(wait_forever)
    workers = Workers(monkeypatch, lambda task, member, attempt: env)

    async def scenario() -> None:
        steps = []
        with pytest.raises(InfrastructureFailure, match="engine replica"):
            async with workers.pool.lease() as lease:
                await lease.make(TASKS[0]).start()
                steps.append(asyncio.ensure_future(lease.make(TASKS[0]).step(assistant("hi"))))
                await asyncio.sleep(1)
                assert (env.closed, steps[0].done()) == (0, False)
                raise InfrastructureFailure("engine replica 0 was lost")
        with pytest.raises(InfrastructureFailure, match="the environment was closed during a call"):
            await asyncio.wait_for(steps[0], 1)
        assert (workers.held, env.closed) == (0, 1)

    run_in_virtual_time(scenario())
    assert not workers.notes


async def block_for_long() -> None:
    block(40)


async def wait_for_long() -> None:
    await asyncio.sleep(40)


@pytest.mark.parametrize("work", [block_for_long, wait_for_long])
def test_episode_is_charged_for_its_own_environment_alone(
    work: Callable[[], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two environments on one worker: if the first one blocks it, the second one waits, which is not its own time."""
    workers = Workers(monkeypatch, lambda task, member, attempt: Scripted(work), number=1)

    async def step() -> float:
        current_clock.set(clock := LoopClock())
        async with workers.pool.lease() as lease:
            env = lease.make(TASKS[0])
            await env.start()
            began = clock.now()
            await env.step(assistant("hi"))
            return clock.now() - began

    async def both() -> list[float]:
        return await asyncio.gather(step(), step())

    assert run_in_virtual_time(both()) == pytest.approx([40, 40])


def test_environment_workers_need_no_torch() -> None:
    code = (
        "import sys, turnwise.run.environments_in_actors; "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
