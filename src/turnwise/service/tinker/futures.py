"""Waiting for results: the HTTP server's side of the requests that the worker runs."""

import asyncio

from turnwise.service.tinker.errors import ApiError
from turnwise.service.tinker.store import RequestStore, Result

WAIT_S = 20.0
"""Longest time that a retrieval waits before it answers "try again"; clients give up after 45 s."""


class Futures:
    """Events of the requests that somebody waits for."""

    def __init__(self, store: RequestStore) -> None:
        self._store = store
        self._events: dict[str, tuple[asyncio.Event, list[None]]] = {}

    def notify(self, request: str) -> None:
        """Wake those who wait for a request, once its result is stored."""
        if (waiting := self._events.get(request)) is not None:
            waiting[0].set()

    async def result(self, request: str, owner: str) -> Result | None:
        """Return the result of a request; None if it takes longer than WAIT_S. Raises ApiError.

        An unknown request is gone for good: with 410 the SDK sends a sample request again.
        """
        if self._store.digest(request, owner) is None:
            raise ApiError(410, f"There is no request {request[:100]}: send it again.")
        event, waiters = self._events.setdefault(request, (asyncio.Event(), []))
        waiters.append(None)
        try:
            if (result := self._store.result(request)) is not None:
                return result
            async with asyncio.timeout(WAIT_S):
                await event.wait()
            return self._store.result(request)
        except TimeoutError:
            return None
        finally:
            waiters.pop()
            if not waiters:
                self._events.pop(request, None)
