"""Actor with an engine that runs whole episodes: environments are beside it, so a turn crosses no process.

Heavy environments are on workers instead (`env_worker.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from turnwise.cluster.env_worker import EnvLease
from turnwise.cluster.heartbeat import BeatingActor
from turnwise.cluster.images import EpisodeImages, shown_images
from turnwise.cluster.results import encode_result
from turnwise.cluster.session import ProcessInfo, process_info
from turnwise.cluster.weights import PackedWeights, ReceivedWeights, unpack_weights
from turnwise.core.protocols import EngineControl, EngineStats, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Trajectory
from turnwise.rollout.collect import Collector, GroupCollector

POLL_S = 20.0
"""Longest time that `collect` waits: an answer without results shows that the replica is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaParts:
    """The engine and collectors of a replica."""

    engine: EngineControl
    collectors: Mapping[str, GroupCollector]
    """By name, with different sampling settings. Only their `episodes` is called."""
    close: Callable[[], Awaitable[None]]
    load_value_head: Callable[[WeightSource], None]
    """Loads the parameters of a critic on the policy's trunk, whose values then come with the sampled tokens."""
    images: EpisodeImages | None
    """Store into which the renderer puts images; None if the model reads text only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeJob:
    """Episodes that are run together: one, or the two of a match."""

    number: int
    collector: str
    keys: tuple[EpisodeKey, ...]
    lease: EnvLease | None
    """Lease of the worker that runs the environment; None runs it beside the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJobs:
    results: list[tuple[int, bytes]]
    """Number of the job, and its pickled trajectories or exception."""
    images: set[str]
    """Hashes of the images in the results. The replica has them until `collect` is called again."""
    stats: EngineStats


class EngineReplica(BeatingActor):
    """Ray actor. Its methods run as coroutines of one event loop."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._finished: list[tuple[int, bytes]] = []
        self._shown: set[str] = set()
        """Images of the finished jobs."""
        self._marks: dict[int, int] = {}
        """Mark of the images at the start of each job whose images the driver may lack."""
        self._frozen: dict[str, Tensor] = {}
        """Frozen weights, which are sent once. Kept because the engine skips tensors that it has copied before."""
        self._sent: list[int] = []
        """Jobs of the last answer to `collect`."""

    async def start(self, build: Callable[[], ReplicaParts]) -> ProcessInfo:
        """Build the engine. Not part of `__init__`, whose errors Ray reports as text only."""
        self._changed = asyncio.Event()
        with self.during("start"):
            self._parts = build()
        return process_info()

    async def submit(self, jobs: Sequence[EpisodeJob], cancelled: Sequence[int]) -> None:
        """Start episodes, and cancel others."""
        for job in jobs:
            if self._parts.images is not None:
                self._marks[job.number] = self._parts.images.mark()
            self._running[job.number] = asyncio.create_task(self._run(job))
            self._running[job.number].add_done_callback(partial(self._forget_job, job.number))
        for number in cancelled:  # among them perhaps new ones
            if (task := self._running.get(number)) is not None:
                task.cancel()

    def _forget_job(self, number: int, task: asyncio.Task[None]) -> None:
        """Called at the end of every job, also of one that was cancelled before it began."""
        del self._running[number]
        if task.cancelled():
            self._marks.pop(number, None)

    async def _run(self, job: EpisodeJob) -> None:
        collector = self._parts.collectors[job.collector]
        if job.lease is not None:
            assert isinstance(collector, Collector), "check_conflicts rejects self-play and agents here"
            collector = replace(collector, make_env=job.lease.make)
        try:
            with self.during(f"episode of {job.keys[0].task.env}"):
                trajectories = list(await collector.episodes(job.keys))
            self._shown |= shown_images(trajectories)
            result: Sequence[Trajectory] | Exception = trajectories
        except Exception as error:
            result = error
        self._finished.append((job.number, encode_result(result)))
        self._changed.set()

    async def collect(self) -> FinishedJobs:
        """Wait for finished episodes; unblocked by the end of one, and after POLL_S.

        A call also confirms that the driver has the images of the previous answer, so the replica may forget them.
        """
        self._forget_images()
        if not self._finished:
            self._changed.clear()
            try:
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
        results, self._finished = self._finished, []
        shown, self._shown = self._shown, set()
        self._sent = [number for number, _ in results]
        return FinishedJobs(results=results, images=shown, stats=self._parts.engine.stats())

    def _forget_images(self) -> None:
        """Forget images that neither a running episode nor one that has to be sent shows."""
        for number in self._sent:
            self._marks.pop(number, None)
        self._sent = []
        if (images := self._parts.images) is not None:
            images.forget_until(min(self._marks.values(), default=images.mark()))

    async def send_images(self, keys: Sequence[str]) -> list[bytes]:
        """Return the images with these hashes, which the last answer of `collect` named."""
        assert self._parts.images is not None
        return [self._parts.images.get(key) for key in keys]

    async def publish(
        self, version: int, trained: PackedWeights, frozen: PackedWeights | None, value_head: PackedWeights
    ) -> None:
        """Load the weights. `frozen` is None if the replica has them already.

        `value_head` is empty without a critic whose values are needed.
        """
        if frozen is not None:
            self._frozen = unpack_weights(frozen)
        with self.during(f"publication of version {version}"):
            await self._parts.engine.publish(version, ReceivedWeights(self._frozen | unpack_weights(trained)))
        if value_head:
            self._parts.load_value_head(ReceivedWeights(unpack_weights(value_head)))

    async def sleep(self) -> None:
        await self._parts.engine.sleep()

    async def close(self) -> None:
        await self._parts.close()
