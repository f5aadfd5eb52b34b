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
    def alone(self) -> Iterator[None]:
        """Waits until all others are through."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()
