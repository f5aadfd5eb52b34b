"""Blocking calls of the Python API where an event loop already runs, as in a notebook."""

import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from turnwise.run.thread_tasks import cancel_task_of

Result = TypeVar("Result")
WAIT_S = 1.0
"""Seconds between looks at pending signals, which may be delivered to the other thread."""


def outside_event_loop(work: Callable[[], Result]) -> Result:
    """Run `work`, in a thread of its own if this one has a running event loop, as in a notebook.

    An interrupt of the caller cancels the thread's task, so that Ctrl-C and a notebook's stop button end the run as on
    the command line: with a checkpoint.
    """
    return work() if not _in_event_loop() else _in_thread(work)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(work: Callable[[], Result]) -> Result:
    """Run `work` in a thread and wait for it; interrupts are passed on."""
    results: list[Result] = []
    errors: list[BaseException] = []
    done = threading.Event()  # not join: when interrupted, it may take a running thread for stopped (Python 3.11)

    def target() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=target, name="turnwise")
    thread.start()
    with _interrupts_raise():
        while not done.is_set():
            try:
                done.wait(WAIT_S)
            except KeyboardInterrupt:
                _interrupt(thread.ident or 0)
    if errors:
        raise errors[0]
    return results[0]


def _interrupt(thread: int) -> None:
    """Cancel the thread's task, or raise KeyboardInterrupt in the thread if it has none."""
    if not cancel_task_of(thread):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))


@contextmanager
def _interrupts_raise() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt here: `asyncio.run` would only cancel its own task, which is waiting."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
