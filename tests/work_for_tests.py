"""Counted work and guards against hangs, for tests that must not assert durations.

A test that asserts seconds fails on a slow or busy machine. The lines of Python that a call runs are the same
everywhere.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANG_S = 120.0
"""Longer than any tested operation takes on a busy machine."""


def count_lines(work: Callable[[], object]) -> int:
    """Count the lines of Python that `work` runs in this thread. A call into C counts as the line that makes it."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@contextmanager
def hang_guard(seconds: float = HANG_S) -> Iterator[None]:
    """Fail what does not end, such as a regular expression that backtracks. Only in the main thread."""

    def fail(*_: object) -> None:
        raise AssertionError(f"still running after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wait_until(happened: Callable[[], object], seconds: float = HANG_S) -> bool:
    """Return whether the condition becomes true in time. Blocks, so an event loop does not run meanwhile."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
