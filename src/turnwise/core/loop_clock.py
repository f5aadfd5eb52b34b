"""A clock per episode or call that stands still while the code of others holds the event loop."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class _Thread(threading.local):
    held_s = 0.0
    """Seconds in which code that is known to block has held this thread's event loop."""


_thread = _Thread()


class LoopClock:
    """Seconds of wall time, less those in which others held the event loop and those of `pause_current_clock`."""

    def __init__(self) -> None:
        self._own_s = 0.0
        self._paused_s = 0.0
        self._paused_at: float | None = None

    def now(self) -> float:
        return self._running() if self._paused_at is None else self._paused_at

    def _running(self) -> float:
        return time.monotonic() - (_thread.held_s - self._own_s) - self._paused_s

    def count_own(self, seconds: float) -> None:
        """Count time in which its own code held the event loop: `now` does not leave it out."""
        self._own_s += seconds

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


current_clock: ContextVar[LoopClock | None] = ContextVar("own_clock", default=None)
"""The clock of the episode or call whose code runs, also in the tasks that it starts."""


def count_blocked(seconds: float, *, own: bool = False) -> None:
    """Count time in which the event loop was held. `own`: by the code of `current_clock`, which goes on meanwhile."""
    _thread.held_s += seconds
    if own and (clock := current_clock.get()) is not None:
        clock.count_own(seconds)


@contextmanager
def pause_current_clock() -> Iterator[None]:
    """Stop `current_clock` while its code waits for another agent, whose own clock runs."""
    clock = current_clock.get()
    if clock is None:
        yield
    else:
        with clock.pause():
            yield
