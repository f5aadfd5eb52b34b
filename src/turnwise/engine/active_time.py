"""Time in which an engine has something to generate."""

import time
from collections.abc import Callable


class ActiveTime:
    """Seconds with at least one running request: each runs inside `with active_time:`, any number at once."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._running = 0
        self._since = self._seconds = 0.0

    @property
    def seconds(self) -> float:
        return self._seconds + (self._now() - self._since if self._running else 0.0)

    def __enter__(self) -> None:
        if not self._running:
            self._since = self._now()
        self._running += 1

    def __exit__(self, *_: object) -> None:
        self._running -= 1
        if not self._running:
            self._seconds += self._now() - self._since
