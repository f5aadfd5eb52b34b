"""The vLLM engine: sessions keep their contexts, replicas sample turns, published weights reach every replica."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.constraint import ConstraintError
from turnwise.core.errors import InfrastructureFailure, Outage
from turnwise.core.protocols import Completion, EngineStats, Sampling, WeightSource
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey
from turnwise.engine.active_time import ActiveTime
from turnwise.engine.turn import SampledTurn, stop_reason
from turnwise.engine.vllm.images import ImageReader
from turnwise.engine.vllm.requests import Replica, ReplicaFailure, TokenRequest
from turnwise.engine.vllm.weights import PublishedWeights, Publisher

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ReplicaState:
    replica: Replica
    live: bool = False
    """Whether it answers with the latest weights."""
    starts: int = 0
    answered: bool = True
    """Whether it has sampled a turn since it was last started."""
    sessions: int = 0
    active: ActiveTime = field(default_factory=ActiveTime)


class VllmSession:
    """The context of one episode. It stays on its replica, whose cache holds the prefix, until the replica fails."""

    def __init__(self, engine: "VllmEngine", state: ReplicaState, key: EpisodeKey, context: Sequence[int]) -> None:
        self._engine, self._key = engine, key
        self.state = state
        self._context = list(context)
        self._sampled = 0
        self._sampling_s = 0.0
        self._since: float | None = None

    @property
    def sampling_s(self) -> float:
        """Seconds since its requests were sent, including the time that they waited in vLLM's queue."""
        return self._sampling_s + (0.0 if self._since is None else time.perf_counter() - self._since)

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        if sampling.constraint is not None:
            raise ConstraintError("the vLLM engine samples without constraints; engine native has them")
        if restart:
            self._context.clear()
        self._context.extend(ids)
        if not self._context:
            raise ValueError("nothing to generate from: pass at least one id")
        seed = address("vllm", self._key.address, self._sampled)
        self._since = time.perf_counter()
        try:
            completion = await self._engine.complete(self, tuple(self._context), sampling, seed)
        finally:
            self._sampling_s, self._since = self.sampling_s, None
        self._context.extend(completion.ids)
        self._sampled += len(completion.ids)
        return completion

    def fork(self, key: EpisodeKey, length: int | None = None) -> AbstractAsyncContextManager["VllmSession"]:
        """Open a session on the same replica, whose prefix cache holds the context."""
        return self._engine.open_on(self.state, key, self._context[:length])


class VllmEngine:
    """Samples with vLLM, in this process or on servers.

    It starts with the first session or publication and lives as long as the event loop. Weights may be published while
    sessions are open: running requests pause, and continue with the new weights. A replica that dies is replaced by
    another one, or restarted with the latest weights; its requests are sent again with the same seeds.
    """

    def __init__(
        self,
        model: WeightSource,
        replicas: Sequence[Replica],
        publisher: Publisher,
        *,
        stop_ids: Iterable[int],
        decode: Callable[[list[int]], str],
        images: ImageReader | None = None,
    ) -> None:
        """`model`: weights of version 0, for an engine that samples before anything is published.

        `images`: reads the images of contexts; None: the model reads text only.
        """
        self.policy_version = 0
        self._model, self._publisher = model, publisher
        self._states = [ReplicaState(replica) for replica in replicas]
        self._stop_ids, self._decode, self._images = tuple(stop_ids), decode, images
        self._numbers = count()
        self._counts = Counter(dict.fromkeys(("context_tokens", "sampled_tokens", "restarts"), 0))
        self._entered = PerLoop(self._enter_loop)

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[VllmSession]:
        return self.open_on(None, key)

    @asynccontextmanager
    async def open_on(
        self, state: ReplicaState | None, key: EpisodeKey, context: Sequence[int] = ()
    ) -> AsyncIterator[VllmSession]:
        """Open a session on this replica; None: on the one with the fewest sessions."""
        await self._start_once()
        session = VllmSession(self, state or self._choose(), key, context)
        session.state.sessions += 1
        try:
            yield session
        finally:
            session.state.sessions -= 1

    def stats(self) -> EngineStats:
        """Return the totals; `active_s` is the mean of the replicas."""
        active_s = sum(state.active.seconds for state in self._states) / len(self._states)
        published_bytes = self._publisher.published_bytes
        return EngineStats(counts=dict(self._counts), active_s=active_s, published_bytes=published_bytes)

    async def sleep(self) -> None:
        """Release GPU memory; the next request allocates it again."""
        await asyncio.gather(*(self._sleep(state) for state in self._states if state.live))

    async def _sleep(self, state: ReplicaState) -> None:
        try:
            await state.replica.sleep()
        except ReplicaFailure as failure:  # the next publication restarts it
            self._report(state, failure)

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Load the weights into every replica. One that cannot be reached is tried again with the next version."""
        self._entered.get()
        async with self._recovery:
            await self._load(await asyncio.to_thread(self._publisher.write, version, weights))

    async def _start_once(self) -> None:
        """Start with the latest weights unless the replicas run already."""
        self._entered.get()
        async with self._recovery:
            if not any(state.starts for state in self._states):
                latest = self._publisher.latest
                if latest is None:
                    latest = await asyncio.to_thread(self._publisher.write, self.policy_version, self._model)
                await self._load(latest)

    async def _load(self, published: PublishedWeights) -> None:
        failures = await asyncio.gather(*(self._update(state, published) for state in self._states))
        if not any(state.live for state in self._states):
            raise Outage(" ".join(failures))
        self._publisher.keep(published)
        self.policy_version = published.version

    async def _update(self, state: ReplicaState, published: PublishedWeights) -> str:
        """Load weights into a replica; start it first if it is not live. Return why that failed, or ""."""
        try:
            if state.live:
                await state.replica.load(published)
                return ""
        except ReplicaFailure as failure:
            self._report(state, failure)
        try:
            await self._start(state, published)
        except ReplicaFailure as failure:
            return f"{state.replica.name} does not answer ({failure}). Start it, or correct engine.urls."
        return ""

    async def _start(self, state: ReplicaState, published: PublishedWeights) -> None:
        state.live = False
        await state.replica.start()
        await state.replica.load(published)
        if state.starts:
            log.warning("%s was restarted with the weights of version %d", state.replica.name, published.version)
            self._counts["restarts"] += 1
        state.live, state.answered = True, state.starts == 0
        state.starts += 1

    async def complete(
        self, session: VllmSession, prompt: tuple[int, ...], sampling: Sampling, seed: int
    ) -> Completion:
        """Sample one turn, on another replica if the session's own fails."""
        ids, images = (prompt, ()) if self._images is None else self._images.read(prompt)
        while True:
            state = session.state
            starts = state.starts
            request = TokenRequest(
                id=f"turnwise-{seed:x}-{next(self._numbers)}",
                prompt=ids,
                sampling=sampling,
                stop_ids=self._stop_ids,
                seed=seed,
                version=self.policy_version,
                images=images,
                never_sampled=() if self._images is None else self._images.never_sampled,
            )
            try:
                if not state.live:
                    raise ReplicaFailure("it is down")
                with state.active:
                    completion = await self._sample(state.replica, request)
            except ReplicaFailure as failure:
                state.sessions -= 1
                session.state = await self._replace(state, starts, failure)
                session.state.sessions += 1
                continue
            state.answered = True
            self._counts.update(context_tokens=len(prompt), sampled_tokens=len(completion.ids))
            return completion

    async def _sample(self, replica: Replica, request: TokenRequest) -> Completion:
        """Collect a turn up to its stop id or stop string. Tokens that vLLM sampled after a stop string are dropped."""
        turn = SampledTurn(sampling=request.sampling)
        spans: tuple[tuple[int, int, int], ...] = ()
        async for chunk in replica.generate(request):
            for token, logprob in zip(chunk.ids, chunk.logprobs, strict=True):
                if turn.stop is None:
                    turn.ids.append(token)
                    turn.logprobs.append(logprob)
                    turn.label_tokens(self.policy_version)
                    turn.stop = stop_reason(turn, self._stop_ids, self._decode)
            if chunk.finished:
                spans = chunk.version_spans
            elif turn.stop is not None:
                await replica.abort(request)
        if turn.stop is None:
            raise ReplicaFailure("it ended a request too early")
        if spans:
            versions = [version for version, start, end in spans for _ in range(start, end)]
            turn.versions = versions[: len(turn.ids)]
        return turn.complete(self.policy_version)

    async def _replace(self, state: ReplicaState, starts: int, failure: ReplicaFailure) -> ReplicaState:
        """Return a live replica in place of one that failed: another one, else the same, restarted."""
        async with self._recovery:  # one restart at a time: later callers find it done
            if state.starts == starts:
                self._report(state, failure)
                if not any(state.live for state in self._states):
                    await self._restart(state, failure)
        return self._choose()

    async def _restart(self, state: ReplicaState, failure: ReplicaFailure) -> None:
        name = state.replica.name
        if not state.answered:
            raise Outage(f"{name} failed again right after it was restarted ({failure}).") from failure
        published = self._publisher.latest
        assert published is not None  # sessions open after the first publication
        try:
            await self._start(state, published)
        except ReplicaFailure as again:
            raise InfrastructureFailure(f"{name} does not answer ({again})") from again

    def _report(self, state: ReplicaState, failure: ReplicaFailure) -> None:
        """Mark a replica as down and say so once."""
        if state.live:
            log.warning("%s failed (%s); its requests are sent again", state.replica.name, failure)
        state.live = False

    def _choose(self) -> ReplicaState:
        """Return the live replica with the fewest sessions; the first replica if none is live."""
        live = [state for state in self._states if state.live]
        return min(live or self._states[:1], key=lambda state: state.sessions)

    def _enter_loop(self) -> None:
        """Bind the engine to the running event loop; replicas of an earlier loop are gone."""
        self._recovery = asyncio.Lock()
        for state in self._states:
            state.live, state.starts, state.sessions = False, 0, 0
        self._keeper = asyncio.create_task(self._close_at_end())

    async def _close_at_end(self) -> None:
        """Wait until the event loop ends, which cancels this task; then close the replicas."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.gather(*(state.replica.close() for state in self._states))
