"""The native engine: sessions submit requests, one task answers them all in passes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from torch import Tensor, nn

from turnwise.concurrency.loop_clock import count_blocked
from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.constraint import ConstraintError
from turnwise.core.protocols import Completion, EngineStats, Sampling, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.engine.active_time import ActiveTime
from turnwise.engine.cpu.runner import SlotRunner
from turnwise.engine.native.requests import PassRunner, Request, SessionSlot
from turnwise.models.weights import WeightCopier
from turnwise.render.grammar import GrammarCompiler, GrammarMatcher


class NativeSession:
    def __init__(self, engine: "NativeEngine", slot: SessionSlot, context: Sequence[int]) -> None:
        self._engine, self._slot, self._context = engine, slot, list(context)
        self._request: Request | None = None
        self._sampling_s = 0.0

    @property
    def sampling_s(self) -> float:
        """Seconds of the passes that its requests took part in."""
        return self._sampling_s + (0.0 if self._request is None else self._engine.seconds_of(self._request))

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        if restart:
            self._slot.restart()
            self._context.clear()
        self._slot.append(ids)
        self._context.extend(ids)
        if not self._slot.pending:
            raise ValueError("nothing to generate from: pass at least one id")
        self._request = Request(slot=self._slot, sampling=sampling, matcher=self._engine.match(sampling))
        try:
            completion = await self._engine.submit(self._request)
        finally:
            self._sampling_s, self._request = self.sampling_s, None
        self._context.extend(completion.ids)
        return completion

    def fork(self, key: EpisodeKey, length: int | None = None) -> AbstractAsyncContextManager["NativeSession"]:
        return self._engine.open_fork(key, self._slot, self._context[:length])


class NativeEngine:
    """Generates with the learner's own module, loaded with turnwise's attention, so weights are never synchronized.

    `runner`: runs the passes; the default is `SlotRunner`, for a CPU. `grammars`: for constraints.

    A pass includes all sessions that have a request. Sessions answered by the last pass continue before the event loop
    does anything else: with environments that never suspend, all of them submit again, so equal runs form equal batches
    and give equal bits. A session that waits for something else, such as a tool, delays no other and joins later.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int,
        stop_ids: Iterable[int],
        decode: Callable[[list[int]], str],
        runner: PassRunner | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.policy_version = 0
        self._model, self._copier = model, WeightCopier(model)
        self._runner: PassRunner = runner or SlotRunner(model, slots=slots, stop_ids=stop_ids, decode=decode)
        self._slots, self._grammars = slots, grammars
        self._live = set[SessionSlot]()
        """Slots of the open sessions."""
        self._pass_s = 0.0
        self._active = ActiveTime()
        self._arrived: list[Request] = []
        self._waiting: list[Request] = []
        """Requests that no pass has included yet: they have just arrived, or the runner has no memory for them."""
        self._answers: dict[SessionSlot, tuple[Request, asyncio.Future[Completion]]] = {}
        """A session waits for one answer at a time."""
        self._entered = PerLoop(self._enter_loop)

    def set_value_head(self, head: Callable[[Tensor], Tensor]) -> None:
        """Return the head's values of the hidden states that tokens are sampled from. A paged runner returns none."""
        if isinstance(self._runner, SlotRunner):
            self._runner.value_head = head

    def stats(self) -> EngineStats:
        return EngineStats(
            counts=dict(self._runner.counts),
            capture_s=self._runner.capture_s,
            busy_s=self._pass_s,
            active_s=self._active.seconds,
            published_bytes=self._copier.copied_bytes,
        )

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Generate with these weights from the next pass on.

        Nothing is copied if they are the engine's own. Frozen parameters are copied once, so that the features of
        images stay valid.

        Open sessions continue: their KV cache keeps the keys and values of older weights, and the versions of their
        tokens say which weights sampled them.
        """
        if weights is self._model and self._live:
            raise RuntimeError("weights that are the learner's own cannot change while a session is open")
        self._answer(self._runner.finish_pass())
        for request, _ in self._answers.values():
            request.label_tokens(self.policy_version)
        if weights is not self._model:
            self._copier.copy(weights)
        self.policy_version = version

    async def sleep(self) -> None:
        """Release the KV cache while no session is open; the next session allocates it again."""
        if self._live:
            raise RuntimeError("a session is open: its KV cache cannot be released")
        self._runner.sleep()

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[NativeSession]:
        """Open a session. Waits for a free slot."""
        return self._session(lambda: self._runner.claim(key.address))

    def open_fork(
        self, key: EpisodeKey, slot: SessionSlot, context: Sequence[int]
    ) -> AbstractAsyncContextManager[NativeSession]:
        """Open a session with `context`, the first tokens of an open session's. Waits for a free slot beside it."""
        if self._slots == 1:
            raise RuntimeError("a fork needs a slot beside the session's own: build the engine with 2 slots or more")

        def claim() -> SessionSlot:
            if slot not in self._live:
                raise RuntimeError("the session was closed before its fork was opened")
            if slot in self._answers:
                raise RuntimeError("a session is sampling: fork it between two turns")
            return self._runner.fork(slot, key.address, context)

        return self._session(claim, context)

    @asynccontextmanager
    async def _session(
        self, claim: Callable[[], SessionSlot], context: Sequence[int] = ()
    ) -> AsyncIterator[NativeSession]:
        self._entered.get()
        async with self._free_slots:
            slot = claim()
            self._live.add(slot)
            try:
                yield NativeSession(self, slot, context)
            finally:
                self._live.remove(slot)
                self._forget(slot)
                self._changed.set()

    def _enter_loop(self) -> None:
        """Create the synchronization primitives of the running event loop."""
        if self._live:
            raise RuntimeError("a session is open in another event loop: close it first")
        self._free_slots, self._changed = asyncio.Semaphore(self._slots), asyncio.Event()
        self._server: asyncio.Task[None] | None = None

    async def submit(self, request: Request) -> Completion:
        if self._server is None or self._server.done():
            self._server = asyncio.create_task(self._serve())
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._answers[request.slot] = request, answer
        self._arrived.append(request)
        self._changed.set()
        with self._active:
            return await answer

    def match(self, sampling: Sampling) -> GrammarMatcher | None:
        """Return a matcher of the constraint. The gateway has compiled the grammar, in a thread."""
        if sampling.constraint is None:
            return None
        if self._grammars is None:
            raise ConstraintError("the engine was built without a tokenizer, so it cannot enforce a grammar")
        return self._grammars.matcher(sampling.constraint)

    def _forget(self, slot: SessionSlot) -> None:
        """Drop the pending request of a session that was cancelled or failed, and free its slot."""
        if self._answers.pop(slot, None) is not None:
            self._arrived = [request for request in self._arrived if request.slot is not slot]
            self._waiting = [request for request in self._waiting if request.slot is not slot]
        self._runner.release(slot)

    async def _serve(self) -> None:
        """Wait for requests; unblocked by `submit` and by the end of a session. Returns when no session is open."""
        try:
            while self._live:
                await self._until_ready()
                if self._answers:
                    self._answer(self._run_pass())
        except BaseException as error:
            for _, answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(error)
            self._answers.clear()
            self._arrived.clear()
            self._waiting.clear()
            if not isinstance(error, Exception):
                raise

    async def _until_ready(self) -> None:
        await asyncio.sleep(0)  # sessions answered by the last pass continue first
        while self._live and not self._answers:
            self._changed.clear()
            await self._changed.wait()

    def seconds_of(self, request: Request) -> float:
        """Return the seconds of the passes that the request took part in."""
        return 0.0 if request.began_s is None else self._pass_s - request.began_s

    def _run_pass(self) -> list[Request]:
        arrived, self._arrived = self._arrived, []
        self._waiting += arrived
        began, before = time.perf_counter(), self._pass_s
        done = self._runner.run_pass(arrived)
        self._pass_s += (seconds := time.perf_counter() - began)
        count_blocked(seconds)
        for request in self._waiting:
            request.began_s = before if request.taken else None
        self._waiting = [request for request in self._waiting if not request.taken]
        return done

    def _answer(self, finished: list[Request]) -> None:
        for request in finished:
            _, answer = self._answers.pop(request.slot)
            if answer.done():
                continue
            if request.matcher is not None and request.matcher.error is not None:
                answer.set_exception(request.matcher.error)
            elif request.stop is not None:
                answer.set_result(request.complete(self.policy_version))
