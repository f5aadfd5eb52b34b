"""Engine replicas as one engine: each new episode goes to the least busy one, and lost ones are replaced."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torch import Tensor

from turnwise.cluster.actor_pool import GRACE_S, START_S, ActorLost, ActorPool, ObjectLost, PooledActor
from turnwise.cluster.deadlines import Deadlines
from turnwise.cluster.engine_replica import POLL_S, EngineReplica, EpisodeJob, FinishedJobs, ReplicaParts
from turnwise.cluster.env_worker import EnvLease
from turnwise.cluster.env_worker_pool import EnvWorkerPool
from turnwise.cluster.results import decode_result
from turnwise.cluster.session import ClusterSession
from turnwise.cluster.weights import PackedWeights, RemoteWeights, StoredWeights, WeightStore, pack_tensor
from turnwise.core.errors import InfrastructureFailure, LearnerLost
from turnwise.core.protocols import EngineStats, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Trajectory
from turnwise.pictures.image_store import ImageStore
from turnwise.rollout.collect import GroupCollector


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    version: int
    weights: RemoteWeights
    value_head: PackedWeights


@dataclass(slots=True, kw_only=True, eq=False)
class _Replica(PooledActor):
    running: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)
    jobs: list[EpisodeJob] = field(default_factory=list)
    """Not sent yet: all of one turn of the event loop are sent together."""
    cancelled: list[int] = field(default_factory=list)
    stats: EngineStats = field(default_factory=EngineStats)
    pump: asyncio.Task[None] | None = None
    frozen: tuple[Any, StoredWeights] | None = None
    """The actor that last loaded weights, and the frozen weights that it has. A new actor has none."""

    @property
    def load(self) -> int:
        return len(self.running)


class ReplicaPool(ActorPool[_Replica]):
    """Replicas behind the part of the `Engine` protocol that the training loop uses.

    An episode is one job on one replica. If that replica is lost, its jobs raise InfrastructureFailure, so collectors
    retry them with the same randomness on a live one. Results of a lost replica are never used, so none counts twice.
    """

    kind = "engine replica"
    work = "episodes"

    def __init__(
        self,
        session: ClusterSession,
        build: Callable[[], ReplicaParts],
        *,
        timeout_s: float,
        images: ImageStore | None,
        note: Callable[[str], None],
    ) -> None:
        """Start the replicas and wait until they are ready. `timeout_s`: longest time that an episode may block.

        `images`: gets the images of all episodes; None if the model reads text only.
        """
        self._images, self._requested = images, set[str]()
        self._hang_s = POLL_S + timeout_s + GRACE_S
        self._numbers, self._deadlines = count(), Deadlines()
        self._value_head: Callable[[], Mapping[str, Tensor]] = dict
        self._store = WeightStore()
        self._latest: _Published | None = None
        self._lost: _Published | None = None
        """The last weights that could not be read."""
        self._past_stats: list[EngineStats] = []
        """Statistics of replicas that were lost."""
        self.replicas = [_Replica(index=index, slot=slot) for index, slot in enumerate(session.placement.engines)]
        super().__init__(session, build, self.replicas, note)

    def _launch(self, pooled: _Replica) -> Any:
        return self._session.launch(EngineReplica, pooled.slot, self.short_name(pooled), pooled.slot.threads)

    async def run(
        self, collector: str, keys: Sequence[EpisodeKey], lease: EnvLease | None = None
    ) -> Sequence[Trajectory]:
        """Run the episodes of these keys together on the live replica with the fewest jobs."""
        replica = await self._choose()
        number, done = next(self._numbers), asyncio.get_running_loop().create_future()
        replica.running[number] = done
        self._record_load(replica)
        self._send_soon(replica)
        replica.jobs.append(EpisodeJob(number=number, collector=collector, keys=tuple(keys), lease=lease))
        if replica.pump is None or replica.pump.done():
            replica.pump = asyncio.create_task(self._pump(replica))
        try:
            trajectories: Sequence[Trajectory] = decode_result(await done)
        except asyncio.CancelledError:
            if replica.running.pop(number, None) is not None:
                self._record_load(replica)
                self._send_soon(replica)
                replica.cancelled.append(number)
            raise
        return trajectories

    def _check_hope(self) -> None:
        """Raise LearnerLost if the latest weights are lost: only a restarted learner can publish others."""
        if self._lost is not None and self._lost is self._latest:
            raise LearnerLost("the published weights were lost with their node")

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
                await self._receive_images(actor, finished.images)
                for number, result in finished.results:
                    replica.losses = 0
                    if (done := replica.running.pop(number, None)) is not None and not done.done():
                        done.set_result(result)
                self._record_load(replica)
        except (ActorLost, ObjectLost) as loss:
            self._lose(replica, actor, loss)
        except Exception as error:
            self._fail(replica, error)
            self._record_load(replica)

    async def _receive_images(self, actor: Any, keys: set[str]) -> None:
        """Wait until all these images of a replica are in the store; unblocked by its answer, and by other replicas'.

        Replicas that have the same image are not both asked for it. If one is lost, the other is asked.
        """
        if self._images is None:
            return
        while missing := [key for key in sorted(keys) if key not in self._images]:
            asked = [key for key in missing if key not in self._requested]
            if not asked:
                await self._wait_for_change()
                continue
            self._requested.update(asked)
            try:
                for data in await self._call(actor.send_images.remote(asked), self._hang_s):
                    self._images.put(data)
            finally:
                self._requested.difference_update(asked)
                self._report_change()

    def _lose(self, replica: _Replica, actor: Any, loss: ActorLost | ObjectLost) -> None:
        """Fail the jobs of a lost replica and start its replacement. Does nothing if it is replaced already."""
        if not self._discard(replica, actor, loss):
            return
        replica.jobs, replica.cancelled = [], []
        self._past_stats.append(replica.stats)
        replica.stats = EngineStats()
        self._fail(replica, InfrastructureFailure(f"engine replica {replica.index} was lost ({replica.last_loss})"))

    @staticmethod
    def _fail(replica: _Replica, error: Exception) -> None:
        """Raise the error in all jobs of a replica. A job that was just cancelled is done already."""
        running, replica.running = replica.running, {}
        for done in running.values():
            if not done.done():
                done.set_exception(error)

    async def _prepare(self, replica: _Replica) -> None:
        """Load the latest weights, also if new ones come meanwhile; wait for new ones if these are lost."""
        loaded: _Published | None = None
        while self._latest is not None and loaded is not self._latest:
            loaded = self._latest
            try:
                await self._load(replica, replica.actor, loaded, START_S)
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
        head = {name: pack_tensor(tensor) for name, tensor in self._value_head().items()}
        self._latest = latest = _Published(version=version, weights=self._store.put(weights), value_head=head)
        self._report_change()
        try:
            await self._all("publication", lambda replica, actor, limit_s: self._load(replica, actor, latest, limit_s))
        except ObjectLost:
            self._lost = latest
            self._check_hope()

    async def _load(self, replica: _Replica, actor: Any, published: _Published, limit_s: float) -> None:
        """Load weights into an actor. Frozen weights are sent only if it does not have them."""
        trained, frozen = published.weights.trained, published.weights.frozen
        has_frozen = replica.frozen == (actor, frozen)
        sent = actor.publish.remote(
            published.version, trained.ref, None if has_frozen else frozen.ref, published.value_head
        )
        await self._call(sent, limit_s)
        replica.frozen = actor, frozen

    async def sleep(self) -> None:
        await self._all("sleep", lambda replica, actor, limit_s: self._call(actor.sleep.remote(), limit_s))

    async def _all(self, name: str, call: Callable[[_Replica, Any, float], Awaitable[None]]) -> None:
        """Call all live replicas at once. Environments beside the engines may block them, as they may `collect`."""
        limit_s = max(self._hang_s, self._deadlines.seconds(name))

        async def one(replica: _Replica, actor: Any) -> None:
            began = time.monotonic()
            try:
                await call(replica, actor, limit_s)
                self._deadlines.note(name, time.monotonic() - began)
            except ActorLost as loss:
                self._lose(replica, actor, loss)

        await asyncio.gather(*(one(replica, replica.actor) for replica in self.replicas if replica.live))

    def stats(self) -> EngineStats:
        """Return the totals of the replicas as of their last answers; `busy_s` and `active_s` are means."""
        all_stats, counts = [*self._past_stats, *(replica.stats for replica in self.replicas)], Counter[str]()
        for stats in all_stats:
            counts.update(stats.counts)
        return EngineStats(
            counts=dict(counts),
            capture_s=sum(stats.capture_s for stats in all_stats),
            busy_s=sum(stats.busy_s for stats in all_stats) / len(self.replicas),
            active_s=sum(stats.active_s for stats in all_stats) / len(self.replicas),
            published_bytes=sum(stats.published_bytes for stats in all_stats),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCollector(GroupCollector):
    """Episodes on the replicas of a pool, with the replicas' own collector of that name."""

    pool: ReplicaPool
    workers: EnvWorkerPool | None
    """Run the environments; None: beside their engines."""
    name: str

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        if self.workers is None:
            return await self.pool.run(self.name, keys)
        async with self.workers.lease() as lease:
            return await self.pool.run(self.name, keys, lease)
