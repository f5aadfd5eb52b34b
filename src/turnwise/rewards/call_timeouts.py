"""The time limit of reward calls that run at once."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnwise.core.loop_clock import OwnClock, own_clock

OFTEN = 100
"""Looks at the clock while one limit passes, at most."""


class CallTimeouts:
    """Gives each of the calls `seconds`, which begin again whenever another call has returned in the meantime.

    Calls may wait for each other, as for a lock or a small server: none is too late while the others get on. Time in
    which other calls hold the event loop does not count either.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._returned = 0

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Raises TimeoutError where the call takes too long; what it yields has then expired."""
        clock, loop = OwnClock(), asyncio.get_running_loop()
        began, returned = clock.now(), self._returned
        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            nonlocal began, returned, timer
            if self._returned > returned:
                began, returned = clock.now(), self._returned
            if (left := began + self._seconds - clock.now()) > 0:
                timer = loop.call_later(max(left, self._seconds / OFTEN), check)
            else:
                cut.reschedule(loop.time())

        owner = own_clock.set(clock)
        try:
            async with asyncio.timeout(None) as cut:
                if self._seconds < math.inf:
                    timer = loop.call_later(self._seconds, check)
                try:
                    yield cut
                finally:
                    if timer is not None:
                        timer.cancel()
            self._returned += 1
        finally:
            own_clock.reset(owner)
