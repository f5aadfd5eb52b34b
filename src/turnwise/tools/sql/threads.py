"""Many at a time, or one alone: for work that shares something which one of them may use up."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar


class SharedLock:
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
    def exclusive(self, patience_s: float) -> Iterator[None]:
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


Given = TypeVar("Given")


def run_in_daemon_thread(work: Callable[[], Given]) -> Future[Given]:
    """Starts at once, however many others there are; one that hangs keeps its thread and nothing else.

    A coroutine awaits it with `asyncio.wrap_future`.
    """
    future: Future[Given] = Future()
    future.set_running_or_notify_cancel()  # from now on nobody can cancel it, so that its end can always be told

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="sql", daemon=True).start()
    return future
