"""One call for all that waits: what arrives while a call runs goes into the next one.

Many episodes search at the same time. One worker thread answers whatever waits, then what has come meanwhile, and ends
when nothing waits; so a lone query is answered at once, and of many nobody waits for a clock.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Query = TypeVar("Query")
Answer = TypeVar("Answer")

MOST = 1024
"""Queries of one call."""


class SearchFailed(Exception):
    """A failure of what answers, not of one query: all that waited in the call meet it."""


@dataclass(slots=True)
class _Waiting(Generic[Query]):
    query: Query
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Batcher(Generic[Query, Answer]):
    """`await batcher.ask(query)` from any event loop. Who is cancelled is left out of the next call."""

    def __init__(self, run: Callable[[list[Query]], Sequence[Answer]], most: int = MOST) -> None:
        """`run`: answers in the order of the queries; called by one thread at a time."""
        self._run, self._most = run, most
        self._waiting: list[_Waiting[Query]] = []
        self._working = False
        self._lock = threading.Lock()

    async def ask(self, query: Query) -> Answer:
        """Raises what `run` raises for this query."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        with self._lock:
            self._waiting.append(_Waiting(query, loop, future))
            starts, self._working = not self._working, True
        if starts:
            threading.Thread(target=self._work, name="search", daemon=True).start()
        return await future

    def _work(self) -> None:
        """Waits for: queries. Ends when there are none."""
        while batch := self._next():
            wanted = [each for each in batch if not each.future.cancelled()]
            if wanted:
                self._tell(wanted, self._answers([each.query for each in wanted]))

    def _next(self) -> list[_Waiting[Query]]:
        with self._lock:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            self._working = bool(batch)
            return batch

    def _answers(self, queries: list[Query]) -> list[Answer | Exception]:
        """One for each query: an answer, or what it met."""
        try:
            answers = list(self._run(queries))
            if len(answers) != len(queries):
                raise SearchFailed(f"{len(answers)} answers to {len(queries)} queries")
            return [*answers]
        except SearchFailed as error:
            return [SearchFailed(str(error)) for _ in queries]  # each raised in a place of its own
        except Exception as error:
            if len(queries) == 1:
                return [error]
        return [answer for query in queries for answer in self._answers([query])]  # whose fault it is shows alone

    def _tell(self, wanted: list[_Waiting[Query]], answers: list[Answer | Exception]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = defaultdict(list)
        for each, answer in zip(wanted, answers, strict=True):
            by_loop[each.loop].append((each.future, answer))
        for loop, settled in by_loop.items():
            with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                loop.call_soon_threadsafe(_settle, settled)


def _settle(settled: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in settled:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
