"""Actors of one kind: start them, choose the least busy one, and replace lost ones."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayTaskError

from turnwise.cluster.placement import ActorSlot
from turnwise.cluster.session import (
    LOSSES,
    ClusterSession,
    ProcessInfo,
    cause_of,
    check_versions,
    describe_briefly,
    describe_loss,
    start_error,
)
from turnwise.concurrency.spans import SpanLog
from turnwise.core.errors import Outage

START_S = 900.0
"""Longest time for an actor to be placed and to load what it needs."""
GRACE_S = 60.0
"""Time beyond an episode's own limits after which an actor that does not answer is given up."""
MAX_LOSSES = 5
"""Times that an actor may be lost without finishing an episode in between; then it is not replaced any more."""

Result = TypeVar("Result")


class ActorLost(Exception):
    """The actor's process or node died, or it does not answer."""


class ObjectLost(Exception):
    """Weights or results were lost with the node that held them."""


@dataclass(slots=True, kw_only=True, eq=False)
class PooledActor(ABC):
    """The driver's side of an actor. `actor` is a new one after a loss; nothing of the old one is used again."""

    index: int
    slot: ActorSlot
    actor: Any = None
    live: bool = False
    """True once it can run episodes."""
    where: str = ""
    losses: int = 0
    last_loss: str = ""
    given_up: str = ""
    reviver: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def load(self) -> int:
        """Number of episodes that it runs."""


Pooled = TypeVar("Pooled", bound=PooledActor)


class ActorPool(ABC, Generic[Pooled]):
    """Actors with the methods `start(build)` and `close()`."""

    kind = ""
    """Name of such an actor in messages."""
    work = ""
    """Name of its work in the spans."""
    spans: SpanLog | None = None
    """Gets the times of the actors' work."""

    def __init__(
        self,
        session: ClusterSession,
        build: Callable[[], object],
        actors: Sequence[Pooled],
        note: Callable[[str], None],
    ) -> None:
        """Start the actors and wait until they are ready."""
        self._session, self._build, self._actors, self._note = session, build, actors, note
        self._waiting: list[asyncio.Future[None]] = []
        for actor in actors:
            actor.actor = self._launch(actor)
        try:
            started = ray.get([actor.actor.start.remote(build) for actor in actors], timeout=START_S)
        except (*LOSSES, RayTaskError, GetTimeoutError) as error:
            raise start_error(f"An {self.kind}", error) from error
        for actor, info in zip(actors, started, strict=True):
            self._accept(actor, info)

    @abstractmethod
    def _launch(self, pooled: Pooled) -> Any:
        """Start the process of an actor."""

    async def _prepare(self, pooled: Pooled) -> None:
        """Bring a new actor up to date before it runs episodes."""

    def _check_hope(self) -> None:
        """Raise if no actor can become live."""

    def _accept(self, pooled: Pooled, info: ProcessInfo) -> None:
        check_versions(info)
        self._session.hangs.note_started(pooled.actor)
        pooled.live, pooled.where = True, f"{info.host}, process {info.pid}"
        self._record_load(pooled)

    def _record_load(self, pooled: Pooled) -> None:
        """Record what the actor does from now on."""
        if self.spans is not None:
            activity = (self.work if pooled.load else None) if pooled.live else "is replaced"
            self.spans.switch(self.short_name(pooled), activity)

    def name(self, pooled: Pooled) -> str:
        return f"{self.short_name(pooled)} ({pooled.where})"

    def short_name(self, pooled: Pooled) -> str:
        return f"{self.kind} {pooled.index}"

    async def _choose(self) -> Pooled:
        """Return the live actor with the fewest episodes; wait for one if none is live."""
        while not (live := [actor for actor in self._actors if actor.live]):
            for actor in self._actors:
                self._revive(actor)
            if all(actor.given_up for actor in self._actors):
                raise Outage(f"All {self.kind}s are lost. Last failure: {self._actors[-1].given_up}")
            self._check_hope()
            await self._wait_for_change()
        return min(live, key=lambda actor: actor.load)

    async def _wait_for_change(self) -> None:
        """Wait; unblocked by `_report_change`: an actor is live or given up, or something else has changed."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed

    def _report_change(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    def _discard(self, pooled: Pooled, actor: Any, loss: object) -> bool:
        """Kill a lost actor and start its replacement. Return False if it is replaced already."""
        if pooled.actor is not actor or not pooled.live:
            return False
        loss = self._session.hangs.cause(actor) or loss
        pooled.live, pooled.last_loss = False, str(loss)
        pooled.losses += 1
        self._session.kill(actor)
        self._note(
            f"{self.name(pooled)} was lost: {loss}. It is replaced, and its {pooled.load} running episodes are retried."
        )
        self._record_load(pooled)
        self._revive(pooled)
        return True

    def _revive(self, pooled: Pooled) -> None:
        if not pooled.live and not pooled.given_up and (pooled.reviver is None or pooled.reviver.done()):
            pooled.reviver = asyncio.create_task(self._replace(pooled))

    async def _replace(self, pooled: Pooled) -> None:
        """Start a new actor. It is prepared before it runs any episode."""
        while pooled.losses < MAX_LOSSES:
            pooled.actor = actor = self._launch(pooled)
            try:
                info = await self._call(actor.start.remote(self._build), START_S)
                await self._prepare(pooled)
                self._accept(pooled, info)
                break
            except ActorLost as loss:
                pooled.losses += 1
                pooled.last_loss = self._session.hangs.cause(actor) or str(loss)
                self._session.kill(actor)
            except Exception as error:
                pooled.last_loss, pooled.losses = describe_briefly(error), MAX_LOSSES
        if not pooled.live:
            pooled.given_up = pooled.last_loss
            if self.spans is not None:
                self.spans.switch(self.short_name(pooled), None)
            self._note(f"{self.short_name(pooled)} is given up: {pooled.given_up}")
        self._report_change()

    @staticmethod
    async def _call(ref: Awaitable[Result], limit_s: float) -> Result:
        """Await an actor's answer. ActorLost if it is dead or gives none in time."""
        answer = asyncio.ensure_future(_wait_for(ref))
        for _ in range(2):  # once more: this process may itself have been blocked
            await asyncio.wait({answer}, timeout=limit_s / 2)
        if not answer.done():
            answer.cancel()
            raise ActorLost(f"no answer for {limit_s:.0f} s")
        return answer.result()

    def close(self) -> None:
        """End the actors; live ones close their services first."""
        closing = [actor.actor.close.remote() for actor in self._actors if actor.live]
        ray.wait(closing, num_returns=len(closing), timeout=5) if closing else None
        for actor in self._actors:
            self._session.kill(actor.actor)


async def _wait_for(ref: Awaitable[Result]) -> Result:
    """Await Ray's reference, with the errors of this module."""
    try:
        return await ref
    except LOSSES as error:
        raise ActorLost(describe_loss(error)) from error
    except ObjectLostError as error:
        raise ObjectLost("its data was lost with a node") from error
    except RayTaskError as error:
        if isinstance(error.cause, ObjectLostError):
            raise ObjectLost("its data was lost with a node") from error
        raise cause_of(error) from error
