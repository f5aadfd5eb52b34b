"""Cancel the main task of an event loop in another thread, as Ctrl-C does in the main thread."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_tasks: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = {}
"""Thread -> its event loop and the task to cancel."""


@contextmanager
def cancellable() -> Iterator[None]:
    """Let `cancel_task_of` cancel the current task while the block runs."""
    task, thread = asyncio.current_task(), threading.get_ident()
    if task is None:
        raise RuntimeError("cancellable must be used inside a task")
    _tasks[thread] = (asyncio.get_running_loop(), task)
    try:
        yield
    finally:
        del _tasks[thread]


def cancel_task_of(thread: int) -> bool:
    """Cancel the task at its next await, so that it can save its state. Return False if the thread has none."""
    running = _tasks.get(thread)
    if running is None:
        return False
    loop, task = running
    loop.call_soon_threadsafe(task.cancel)
    return True
