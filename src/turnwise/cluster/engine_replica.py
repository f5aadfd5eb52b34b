"""Actor with an engine that runs whole episodes: environments are beside it, so a turn crosses no process."""

import asyncio
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from turnwise.cluster.session import ProcessInfo, process_info
from turnwise.cluster.weights import PackedWeights, ReceivedWeights
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.protocols import EngineControl, EngineStats, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Trajectory
from turnwise.rollout.collect import GroupCollector

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeJob:
    """Episodes that are run together: one, or the two of a match."""

    number: int
    collector: str
    keys: tuple[EpisodeKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJobs:
    results: list[tuple[int, bytes]]
    """Number of the job, and its pickled trajectories or exception."""
    stats: EngineStats


class EngineReplica:
    """Ray actor. Its methods run as coroutines of one event loop."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._finished: list[tuple[int, bytes]] = []

    async def start(self, build: Callable[[], ReplicaParts]) -> ProcessInfo:
        """Build the engine. Not part of `__init__`, whose errors Ray reports as text only."""
        self._changed = asyncio.Event()
        self._parts = build()
        return process_info()

    async def submit(self, jobs: Sequence[EpisodeJob], cancelled: Sequence[int]) -> None:
        """Start episodes, and cancel others."""
        for number in cancelled:
            if (task := self._running.get(number)) is not None:
                task.cancel()
        for job in jobs:
            self._running[job.number] = asyncio.create_task(self._run(job))

    async def _run(self, job: EpisodeJob) -> None:
        try:
            result: Sequence[Trajectory] | Exception = await self._parts.collectors[job.collector].episodes(job.keys)
        except Exception as error:
            result = error
        finally:
            del self._running[job.number]
        self._finished.append((job.number, encode_result(result)))
        self._changed.set()

    async def collect(self) -> FinishedJobs:
        """Wait for finished episodes; unblocked by the end of one, and after POLL_S."""
        if not self._finished:
            self._changed.clear()
            try:
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
        results, self._finished = self._finished, []
        return FinishedJobs(results=results, stats=self._parts.engine.stats())

    async def publish(self, version: int, packed: PackedWeights, value_head: PackedWeights) -> None:
        """Load the weights; `value_head` is empty without a critic whose values are needed."""
        await self._parts.engine.publish(version, ReceivedWeights(packed))
        if value_head:
            self._parts.load_value_head(ReceivedWeights(value_head))

    async def sleep(self) -> None:
        await self._parts.engine.sleep()

    async def close(self) -> None:
        await self._parts.close()


def encode_result(result: Sequence[Trajectory] | Exception) -> bytes:
    """Pickle one job's result. What cannot be pickled fails that job alone."""
    if isinstance(result, Exception):
        return pickle.dumps(_portable(result))
    try:
        return pickle.dumps(list(result))
    except Exception as error:
        return pickle.dumps(
            EnvironmentFailure(f"The episode's info cannot be sent between processes ({error}). Use plain values.")
        )


def _portable(error: Exception) -> Exception:
    """Return an exception that any process can unpickle: our own as they are, others as text with their traceback."""
    if type(error).__module__.startswith("turnwise.") and isinstance(
        error, UserError | EnvironmentFailure | InfrastructureFailure
    ):
        return type(error)(str(error))
    return RuntimeError("".join(traceback.format_exception(error)).rstrip())
