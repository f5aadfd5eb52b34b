"""Many at a time, or one alone: for work that shares something which one of them may use up."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False
        """Somebody is alone, or waits until he is: nobody else begins."""

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Waits while somebody is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self, patience_s: float) -> Iterator[None]:
        """Waits until all others are through, each of whom has so long; one that hangs is no longer waited for."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: not self._running, timeout=patience_s)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()
