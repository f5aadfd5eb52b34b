"""A guard for code whose work might grow by the square of its input: minutes, where it should take a moment."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GUARD_S = 120.0


@contextmanager
def hang_guard() -> Iterator[None]:
    """Fails the test after two minutes, also inside a regular expression. In the main thread only."""

    def stop(*_: Any) -> None:
        raise AssertionError(f"still running after {GUARD_S:g} s: its work does not grow with its input alone")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, GUARD_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
