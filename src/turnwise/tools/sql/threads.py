"""Threads for SQL queries: a shared/exclusive lock, and daemon threads that nothing has to wait for."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

Value = TypeVar("Value")


class SharedLock:
    """Lock with many shared holders or one exclusive holder."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False
        """The lock is held exclusively, or someone waits for that: no shared holder is admitted."""

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Wait until no one holds or awaits the lock exclusively."""
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
    def exclusive(self, timeout_s: float) -> Iterator[None]:
        """Wait until the shared holders are done; after `timeout_s`, ignore those that hang."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: not self._running, timeout=timeout_s)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


def run_in_daemon_thread(work: Callable[[], Value]) -> Future[Value]:
    """Run `work` in a thread of its own, however many there are. One that hangs blocks nothing, not even the exit.

    A coroutine awaits it with `asyncio.wrap_future`.
    """
    future: Future[Value] = Future()
    future.set_running_or_notify_cancel()  # cannot be cancelled any more, so its result can always be set

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="sql", daemon=True).start()
    return future
