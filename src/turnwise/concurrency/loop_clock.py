"""A clock per episode or call that stops while other code blocks the event loop."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class _Thread(threading.local):
    held_s = 0.0
    """Seconds in which known blocking code has held this thread's event loop."""


_thread = _Thread()


class LoopClock:
    """Wall time in seconds, without the time in which others blocked the event loop or the clock was paused."""

    def __init__(self) -> None:
        self._own_s = 0.0
        self._paused_s = 0.0
        self._paused_at: float | None = None

    def now(self) -> float:
        return self._running() if self._paused_at is None else self._paused_at

    def _running(self) -> float:
        return time.monotonic() - (_thread.held_s - self._own_s) - self._paused_s

    def count_own(self, seconds: float) -> None:
        """Count time in which the clock's own code blocked the event loop, which `now` includes."""
        self._own_s += seconds

    def count_elsewhere(self, seconds: float) -> None:
        """Count time that the clock's code ran in another process while this clock was paused."""
        self._paused_s -= seconds

    @contextmanager
    def pause(self) -> Iterator[None]:
        if self._paused_at is not None:
            yield
            return
        self._paused_at = self._running()
        try:
            yield
        finally:
            self._paused_s += self._running() - self._paused_at
            self._paused_at = None


current_clock: ContextVar[LoopClock | None] = ContextVar("current_clock", default=None)
"""Clock of the running episode or call; inherited by the asyncio tasks that it starts."""


def count_blocked(seconds: float, *, by_current: bool = False) -> None:
    """Count time in which the event loop was blocked. `by_current`: by code whose clock is `current_clock`."""
    _thread.held_s += seconds
    if by_current and (clock := current_clock.get()) is not None:
        clock.count_own(seconds)


@contextmanager
def pause_current_clock() -> Iterator[None]:
    """Pause `current_clock` while its code waits for another agent, whose own clock runs."""
    clock = current_clock.get()
    if clock is None:
        yield
    else:
        with clock.pause():
            yield
