"""Environment workers: each new environment goes to the least busy one, and lost ones are replaced."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from turnwise.cluster.actor_pool import ActorPool, PooledActor
from turnwise.cluster.env_worker import EnvLease, EnvWorker, EnvWorkerLost, WorkerParts
from turnwise.cluster.session import ClusterSession
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Trajectory
from turnwise.rollout.collect import Collector, GroupCollector


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker(PooledActor):
    running: set[int] = field(default_factory=set)
    """Numbers of its environments."""

    @property
    def load(self) -> int:
        return len(self.running)


class EnvWorkerPool(ActorPool[_Worker]):
    """Workers of a run. If one is lost, the episodes of its environments raise EnvWorkerLost and are retried."""

    kind = "environment worker"
    work = "environments"

    def __init__(
        self,
        session: ClusterSession,
        build: Callable[[], WorkerParts],
        *,
        timeout_s: float,
        note: Callable[[str], None],
    ) -> None:
        """Start the workers and wait until they are ready. `timeout_s`: longest time that an environment may take."""
        self._timeout_s, self._numbers = timeout_s, count()
        self.workers = [_Worker(index=index, slot=slot) for index, slot in enumerate(session.placement.env_workers)]
        super().__init__(session, build, self.workers, note)

    def _launch(self, pooled: _Worker) -> Any:
        return self._session.launch(EnvWorker, pooled.slot, self.short_name(pooled), self._timeout_s)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[EnvLease]:
        """Reserve a place for one episode's environment, on the live worker with the fewest."""
        worker, number = await self._choose(), next(self._numbers)
        actor = worker.actor
        worker.running.add(number)
        self._record_load(worker)
        try:
            yield EnvLease(actor=actor, number=number)
            worker.losses = 0
        except EnvWorkerLost as loss:
            name = self.name(worker)
            if self._discard(worker, actor, loss):
                worker.running = set()
            raise EnvWorkerLost(f"{name} was lost: {worker.last_loss}") from loss
        except BaseException:
            actor.close_env.remote(number)  # its engine may be lost, and cannot close it
            raise
        finally:
            worker.running.discard(number)
            self._record_load(worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCollector(GroupCollector):
    """Episodes of an engine in this process, with environments on workers."""

    collector: Collector
    workers: EnvWorkerPool

    async def episodes(self, keys: Sequence[EpisodeKey]) -> Sequence[Trajectory]:
        async with self.workers.lease() as lease:
            return await replace(self.collector, make_env=lease.make).episodes(keys)
