"""Dynamic batching: queries that arrive while a call runs go into the next call.

Many episodes search at the same time. One worker thread answers all waiting queries, then those that arrived meanwhile,
and ends when none is left. A single query is answered at once, and no query waits for a timer.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from turnwise.tools.search.types import SearchFailed

Query = TypeVar("Query")
Answer = TypeVar("Answer")

MAX_BATCH = 1024


@dataclass(slots=True)
class _Pending(Generic[Query]):
    query: Query
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Batcher(Generic[Query, Answer]):
    """`await batcher.submit(query)` from any event loop. Cancelled queries are left out of the next call."""

    def __init__(self, run: Callable[[list[Query]], Sequence[Answer]], max_batch: int = MAX_BATCH) -> None:
        """`run` returns the answers in the order of the queries; it is called from one thread at a time."""
        self._run, self._max_batch = run, max_batch
        self._pending: list[_Pending[Query]] = []
        self._worker_runs = False
        self._lock = threading.Lock()

    async def submit(self, query: Query) -> Answer:
        """Return the answer, or raise what `run` raises for this query."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        with self._lock:
            self._pending.append(_Pending(query, loop, future))
            start_worker, self._worker_runs = not self._worker_runs, True
        if start_worker:
            threading.Thread(target=self._work, name="search", daemon=True).start()
        return await future

    def _work(self) -> None:
        """Answer queries until none is left."""
        while batch := self._next_batch():
            active = [pending for pending in batch if not pending.future.cancelled()]
            if active:
                self._deliver(active, self._answer([pending.query for pending in active]))

    def _next_batch(self) -> list[_Pending[Query]]:
        with self._lock:
            batch, self._pending = self._pending[: self._max_batch], self._pending[self._max_batch :]
            self._worker_runs = bool(batch)
            return batch

    def _answer(self, queries: list[Query]) -> list[Answer | Exception]:
        """One answer or exception per query. If a batch fails, each query is run alone, to find the one at fault."""
        try:
            answers = list(self._run(queries))
            if len(answers) != len(queries):
                raise SearchFailed(f"{len(answers)} answers to {len(queries)} queries")
            return [*answers]
        except SearchFailed as error:
            return [SearchFailed(str(error)) for _ in queries]  # one instance per caller that raises it
        except Exception as error:
            if len(queries) == 1:
                return [error]
        return [answer for query in queries for answer in self._answer([query])]

    def _deliver(self, batch: list[_Pending[Query]], answers: list[Answer | Exception]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = defaultdict(list)
        for pending, answer in zip(batch, answers, strict=True):
            by_loop[pending.loop].append((pending.future, answer))
        for loop, outcomes in by_loop.items():
            with suppress(RuntimeError):  # the event loop has closed, so nothing waits for the answers
                loop.call_soon_threadsafe(_set_outcomes, outcomes)


def _set_outcomes(outcomes: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in outcomes:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
