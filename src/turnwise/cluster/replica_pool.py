"""Engine replicas as one engine: each new episode goes to the least busy one, and lost ones are replaced."""

import asyncio
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from torch import Tensor

from turnwise.cluster.engine_replica import POLL_S, EngineReplica, EpisodeJob, FinishedJobs, ReplicaParts
from turnwise.cluster.placement import ActorSlot
from turnwise.cluster.session import (
    ClusterSession,
    ProcessInfo,
    cause_of,
    check_versions,
    describe_loss,
    first_line,
    start_error,
)
from turnwise.cluster.weights import PackedWeights, RemoteWeights, pack_tensor, put_weights
from turnwise.core.errors import InfrastructureFailure, LearnerLost, Outage
from turnwise.core.protocols import EngineStats, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Trajectory
from turnwise.rollout.collect import GroupCollector

START_S = 900.0
"""Longest time for a replica to be placed and to load its model."""
GRACE_S = 60.0
"""Time beyond an episode's own limits after which a replica that does not answer is given up."""
MAX_LOSSES = 5
"""Times that a replica may be lost without finishing an episode in between; then it is not replaced any more."""

Result = TypeVar("Result")


class ReplicaLost(Exception):
    """The replica's process or node died, or it does not answer."""


class ObjectLost(Exception):
    """Weights or results were lost with the node that held them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    version: int
    weights: RemoteWeights
    value_head: PackedWeights

    def send(self, actor: Any) -> Awaitable[None]:
        return actor.publish.remote(self.version, self.weights.ref, self.value_head)


@dataclass(slots=True, kw_only=True, eq=False)
class _Replica:
    """The driver's side of a replica. `actor` is a new one after a loss; nothing of the old one is used again."""

    index: int
    slot: ActorSlot
    actor: Any
    live: bool = False
    """True once it has the latest weights."""
    where: str = ""
    running: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)
    jobs: list[EpisodeJob] = field(default_factory=list)
    """Not sent yet: all of one turn of the event loop are sent together."""
    cancelled: list[int] = field(default_factory=list)
    stats: EngineStats = field(default_factory=EngineStats)
    losses: int = 0
    given_up: str = ""
    pump: asyncio.Task[None] | None = None
    reviver: asyncio.Task[None] | None = None


class ReplicaPool:
    """Replicas behind the part of the `Engine` protocol that the training loop uses.

    An episode is one job on one replica. If that replica is lost, its jobs raise InfrastructureFailure, so collectors
    retry them with the same randomness on a live one. Results of a lost replica are never used, so none counts twice.
    """

    def __init__(
        self,
        session: ClusterSession,
        build: Callable[[], ReplicaParts],
        *,
        timeout_s: float,
        note: Callable[[str], None],
    ) -> None:
        """Start the replicas and wait until they are ready. `timeout_s`: longest time that an episode may block."""
        self._session, self._build, self._note = session, build, note
        self._hang_s = POLL_S + timeout_s + GRACE_S
        self._numbers = count()
        self._value_head: Callable[[], Mapping[str, Tensor]] = dict
        self._latest: _Published | None = None
        self._lost: _Published | None = None
        """The last weights that could not be read."""
        self._waiting: list[asyncio.Future[None]] = []
        self._past_stats: list[EngineStats] = []
        """Statistics of replicas that were lost."""
        self.replicas = [
            _Replica(index=index, slot=slot, actor=self._launch(slot))
            for index, slot in enumerate(session.placement.engines)
        ]
        try:
            started = ray.get([each.actor.start.remote(build) for each in self.replicas], timeout=START_S)
        except (RayActorError, RayTaskError, GetTimeoutError) as error:
            raise start_error("An engine replica", error) from error
        for replica, info in zip(self.replicas, started, strict=True):
            self._accept(replica, info)

    def _launch(self, slot: ActorSlot) -> Any:
        return self._session.launch(EngineReplica, slot, slot.threads)

    def _accept(self, replica: _Replica, info: ProcessInfo) -> None:
        check_versions(info)
        replica.live, replica.where = True, f"{info.host}, process {info.pid}"

    async def run(self, collector: str, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        """Run the episodes of these keys together on the live replica with the fewest jobs."""
        replica = await self._choose()
        number, done = next(self._numbers), asyncio.get_running_loop().create_future()
        replica.running[number] = done
        self._send_soon(replica)
        replica.jobs.append(EpisodeJob(number=number, collector=collector, keys=tuple(keys)))
        if replica.pump is None or replica.pump.done():
            replica.pump = asyncio.create_task(self._pump(replica))
        try:
            result = pickle.loads(await done)
        except asyncio.CancelledError:
            if replica.running.pop(number, None) is not None:
                self._send_soon(replica)
                replica.cancelled.append(number)
            raise
        if isinstance(result, Exception):
            raise result
        return result

    async def _choose(self) -> _Replica:
        """Return the live replica with the fewest jobs; wait for one if none is live."""
        while not (live := [each for each in self.replicas if each.live]):
            for replica in self.replicas:
                self._revive(replica)
            if all(each.given_up for each in self.replicas):
                raise Outage(f"All engine replicas are lost. Last failure: {self.replicas[-1].given_up}")
            self._check_weights()
            await self._wait_for_change()
        return min(live, key=lambda each: len(each.running))

    def _check_weights(self) -> None:
        """Raise LearnerLost if the latest weights are lost: only a restarted learner can publish others."""
        if self._lost is not None and self._lost is self._latest:
            raise LearnerLost("the published weights were lost with their node")

    async def _wait_for_change(self) -> None:
        """Wait; unblocked by a new replica, one that is given up, and weights that are published or lost."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed

    def _report_change(self) -> None:
        waiting, self._waiting = self._waiting, []
        for changed in waiting:
            if not changed.done():
                changed.set_result(None)

    def _send_soon(self, replica: _Replica) -> None:
        if not replica.jobs and not replica.cancelled:
            asyncio.get_running_loop().call_soon(self._send, replica, replica.actor)

    @staticmethod
    def _send(replica: _Replica, actor: Any) -> None:
        if replica.actor is actor:
            actor.submit.remote(replica.jobs, replica.cancelled)
            replica.jobs, replica.cancelled = [], []

    async def _pump(self, replica: _Replica) -> None:
        """Receive results while jobs run; unblocked by each answer of the replica."""
        actor = replica.actor
        try:
            while replica.running and replica.actor is actor:
                finished: FinishedJobs = await self._call(actor.collect.remote(), self._hang_s)
                replica.stats = finished.stats
                for number, result in finished.results:
                    replica.losses = 0
                    if (done := replica.running.pop(number, None)) is not None and not done.done():
                        done.set_result(result)
        except (ReplicaLost, ObjectLost) as loss:
            self._lose(replica, actor, loss)
        except Exception as error:
            for done in replica.running.values():
                done.set_exception(error)
            replica.running.clear()

    @staticmethod
    async def _call(ref: Awaitable[Result], limit_s: float) -> Result:
        """Await an actor's answer. ReplicaLost if it is dead or gives none in time."""
        answer = asyncio.ensure_future(_wait_for(ref))
        for _ in range(2):  # once more: this process may itself have been blocked
            await asyncio.wait({answer}, timeout=limit_s / 2)
        if not answer.done():
            answer.cancel()
            raise ReplicaLost(f"no answer for {limit_s:.0f} s")
        return answer.result()

    def _lose(self, replica: _Replica, actor: Any, loss: ReplicaLost | ObjectLost) -> None:
        """Fail the jobs of a lost replica and start its replacement. Does nothing if it is replaced already."""
        if replica.actor is not actor or not replica.live:
            return
        running, replica.running, replica.live = replica.running, {}, False
        replica.jobs, replica.cancelled = [], []
        replica.losses += 1
        self._past_stats.append(replica.stats)
        replica.stats = EngineStats()
        ray.kill(actor)
        for done in running.values():
            if not done.done():
                done.set_exception(InfrastructureFailure(f"engine replica {replica.index} was lost ({loss})"))
        self._note(
            f"engine replica {replica.index} ({replica.where}) was lost: {loss}. It is replaced, and its "
            f"{len(running)} running episodes are retried."
        )
        self._revive(replica)

    def _revive(self, replica: _Replica) -> None:
        if not replica.live and not replica.given_up and (replica.reviver is None or replica.reviver.done()):
            replica.reviver = asyncio.create_task(self._replace(replica))

    async def _replace(self, replica: _Replica) -> None:
        """Start a new actor. It gets the latest weights before any episode."""
        while replica.losses < MAX_LOSSES:
            replica.actor = actor = self._launch(replica.slot)
            try:
                info = await self._call(actor.start.remote(self._build), START_S)
                await self._send_latest(actor)
                self._accept(replica, info)
                break
            except ReplicaLost as loss:
                replica.losses += 1
                reason = str(loss)
                ray.kill(actor)
            except Exception as error:
                reason, replica.losses = first_line(error), MAX_LOSSES
        if not replica.live:
            replica.given_up = reason
            self._note(f"engine replica {replica.index} is given up: {reason}")
        self._report_change()

    async def _send_latest(self, actor: Any) -> None:
        """Load the latest weights, also if new ones come meanwhile; wait for new ones if these are lost."""
        loaded: _Published | None = None
        while self._latest is not None and loaded is not self._latest:
            loaded = self._latest
            try:
                await self._call(loaded.send(actor), START_S)
            except ObjectLost:
                self._lost = loaded
                self._report_change()
                while self._latest is loaded:
                    await self._wait_for_change()

    def publish_value_head(self, parameters: Callable[[], Mapping[str, Tensor]]) -> None:
        """Publish these parameters of a critic on the policy's trunk with the weights. Called at each publication."""
        self._value_head = parameters

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Load the weights into all replicas. Those being replaced get them before they run episodes."""
        head = {name: pack_tensor(each) for name, each in self._value_head().items()}
        self._latest = latest = _Published(version=version, weights=put_weights(weights), value_head=head)
        self._report_change()
        try:
            await self._all(latest.send)
        except ObjectLost:
            self._lost = latest
            self._check_weights()

    async def sleep(self) -> None:
        await self._all(lambda actor: actor.sleep.remote())

    async def _all(self, call: Callable[[Any], Awaitable[None]]) -> None:
        """Call all live replicas at once."""

        async def one(replica: _Replica, actor: Any) -> None:
            try:
                await self._call(call(actor), self._hang_s)
            except ReplicaLost as loss:
                self._lose(replica, actor, loss)

        await asyncio.gather(*(one(each, each.actor) for each in self.replicas if each.live))

    def stats(self) -> EngineStats:
        """Return the totals of the replicas as of their last answers; `busy_s` and `active_s` are means."""
        found, counts = [*self._past_stats, *(each.stats for each in self.replicas)], Counter[str]()
        for each in found:
            counts.update(each.counts)
        return EngineStats(
            counts=dict(counts),
            capture_s=sum(each.capture_s for each in found),
            busy_s=sum(each.busy_s for each in found) / len(self.replicas),
            active_s=sum(each.active_s for each in found) / len(self.replicas),
        )

    def close(self) -> None:
        """End the replicas; live ones close their services first."""
        closing = [each.actor.close.remote() for each in self.replicas if each.live]
        ray.wait(closing, num_returns=len(closing), timeout=5) if closing else None
        for replica in self.replicas:
            ray.kill(replica.actor)


async def _wait_for(ref: Awaitable[Result]) -> Result:
    """Await Ray's reference, with the errors of this module."""
    try:
        return await ref
    except RayActorError as error:
        raise ReplicaLost(describe_loss(error)) from error
    except ObjectLostError as error:
        raise ObjectLost("its data was lost with a node") from error
    except RayTaskError as error:
        if isinstance(error.cause, ObjectLostError):
            raise ObjectLost("its data was lost with a node") from error
        raise cause_of(error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCollector(GroupCollector):
    """Episodes on the replicas of a pool, with the replicas' own collector of that name."""

    pool: ReplicaPool
    name: str

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        return await self.pool.run(self.name, keys)
