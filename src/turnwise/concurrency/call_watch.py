"""Log calls of user code that do not return, again and again.

A thread logs them: code that blocks the event loop leaves no other way.
"""

import logging
import threading
import time
from dataclasses import dataclass

FIRST_S = 30.0
"""Seconds without a call that returned, before the first line. Each further line comes after twice as long."""
POLL_S = 1.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Calls:
    """Calls of one name."""

    next_s: float
    advice: str = ""
    running: int = 0
    waiting_since: float | None = None
    """Time at which the last call returned, or the first one began; None while no call runs."""


class CallWatch:
    """Counts the running calls by name, and logs those of which none has returned for long."""

    def __init__(self, first_s: float = FIRST_S, poll_s: float = POLL_S) -> None:
        self._first_s, self._poll_s = first_s, poll_s
        self._calls: dict[str, _Calls] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, name: str, advice: str) -> None:
        """Count a call that begins. `advice` ends the line."""
        with self._lock:
            calls = self._calls.setdefault(name, _Calls(self._first_s))
            calls.running += 1
            calls.advice = advice
            if calls.waiting_since is None:
                calls.waiting_since = time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="call-watch", daemon=True)
                self._thread.start()

    def end(self, name: str, *, timed_out: bool) -> None:
        """Count a call that ended. After one that timed out, the next one continues the wait."""
        with self._lock:
            calls = self._calls[name]
            calls.running -= 1
            if not timed_out:
                calls.waiting_since = time.monotonic() if calls.running else None

    def _run(self) -> None:
        while True:
            time.sleep(self._poll_s)
            for line in self.overdue(time.monotonic()):
                log.warning("note: %s", line)

    def overdue(self, now: float) -> list[str]:
        """Return a line per name whose time has come, and double its interval."""
        lines = []
        with self._lock:
            for name, calls in self._calls.items():
                if not calls.running or calls.waiting_since is None:
                    continue
                waited_s = now - calls.waiting_since
                if waited_s < calls.next_s:
                    continue
                running = f"{calls.running} running call{'s' * (calls.running > 1)}"
                waited = f"none has returned for {waited_s:,.0f} s"
                lines.append(f"waiting for {name}: {running}, and {waited}; {calls.advice}")
                while calls.next_s <= waited_s:
                    calls.next_s *= 2
        return lines


watch = CallWatch()
"""Watch of this process."""
