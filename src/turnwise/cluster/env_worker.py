"""Actor with environments of several episodes, for environments that are heavy on the CPU. Needs no torch.

Environments are held as an environment server holds them (`rollout/held_env.py`); messages (`cluster/env_messages.py`)
travel through Ray, which also notices that a worker or its node is gone. An episode calls its environment through
`LeasedEnv`, from the process of its engine: one call per turn.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayTaskError

from turnwise.cluster.env_messages import Action, Opening, Reply, encode_reply
from turnwise.cluster.heartbeat import BeatingActor
from turnwise.cluster.session import LOSSES, ProcessInfo, cause_of, describe_loss, process_info
from turnwise.concurrency.blocking import exit_if_blocked
from turnwise.concurrency.loop_clock import current_clock, pause_current_clock
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import Message
from turnwise.core.protocols import Env, MakeEnv, Observation, StepResult
from turnwise.core.task import Task
from turnwise.rollout.failures import creation_boundary
from turnwise.rollout.held_env import HeldEnv


class EnvWorkerLost(InfrastructureFailure):
    """The worker's process or node died, and the environment with it. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Environments of a worker, and what they share."""

    make_env: MakeEnv
    close: Callable[[], Awaitable[None]]


class EnvWorker(BeatingActor):
    """Ray actor. Its methods run as coroutines of one event loop, which is not in the main thread."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._held: dict[int, HeldEnv[Env]] = {}

    async def start(self, build: Callable[[], WorkerParts]) -> ProcessInfo:
        """Build what environments share. Not part of `__init__`, whose errors Ray reports as text only."""
        exit_if_blocked()
        with self.during("start"):
            self._parts = build()
        return process_info()

    async def open_env(self, number: int, opening: bytes) -> bytes:
        """Make and start an environment; reply with its observation. The caller chooses the number."""

        async def open_it() -> tuple[Observation, float]:
            asked = Opening.decode(opening)
            with creation_boundary():
                env = self._parts.make_env(asked.task, asked.member, asked.attempt)
            self._held[number] = held = HeldEnv(env, timeout_s=self._timeout_s, close_s=self._timeout_s)
            with self.during(f"start of {asked.task.env}"):
                return await held.start()

        return await encode_reply(open_it())

    async def step_env(self, number: int, action: bytes) -> bytes:
        async def step() -> tuple[StepResult, float]:
            with self.during("step of an environment"):
                return await self._held[number].step(Action.decode(action).message)

        return await encode_reply(step())

    async def close_env(self, number: int) -> bytes:
        """Close an environment, also in the middle of a call. Does nothing if it is closed or was never opened."""

        async def close() -> tuple[None, float]:
            if (held := self._held.pop(number, None)) is not None:
                await held.close()
            return None, 0.0

        return await encode_reply(close())

    async def close(self) -> None:
        await self._parts.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvLease:
    """Slot of one episode's environment on a worker. It can be sent to other processes."""

    actor: Any
    number: int

    def make(self, task: Task, member: int = 0, attempt: int = 0) -> "LeasedEnv":
        return LeasedEnv(self, task, member, attempt)


class LeasedEnv:
    """An environment on a worker, as a core `Env`."""

    def __init__(self, lease: EnvLease, task: Task, member: int, attempt: int) -> None:
        self._lease, self._opening = lease, Opening(task=task, member=member, attempt=attempt)

    async def start(self) -> Observation:
        opened = await self._call(self._lease.actor.open_env.remote(self._lease.number, self._opening.encode()))
        assert isinstance(opened, Observation)
        return opened

    async def step(self, action: Message) -> StepResult:
        encoded = Action(message=action).encode()
        result = await self._call(self._lease.actor.step_env.remote(self._lease.number, encoded))
        assert isinstance(result, StepResult)
        return result

    async def close(self) -> None:
        await self._call(self._lease.actor.close_env.remote(self._lease.number))

    async def _call(self, answer: Awaitable[bytes]) -> Observation | StepResult | None:
        """Await the worker. The episode's clock counts the seconds of the environment, as measured there."""
        try:
            with pause_current_clock():
                encoded = await answer
        except LOSSES as error:
            raise EnvWorkerLost(describe_loss(error)) from error
        except RayTaskError as error:
            raise cause_of(error) from error
        reply = Reply.decode(encoded)
        if (clock := current_clock.get()) is not None:
            clock.count_elsewhere(reply.seconds)
        return reply.read()
