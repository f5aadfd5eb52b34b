"""Looks at every running call from outside, every 20 ms, in a thread of its own: a busy event loop must not stretch a
limit.

waits for: the next tick, or, when nothing has run for a while, for the first call. unblocked by: the clock, `add`.
"""

import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from turnwise.sandbox.processes import (
    buffer_bytes,
    count_mappings,
    descendants,
    process_usage,
    proportional_bytes,
    socket_buffer_bytes,
    unlinked_file_bytes,
)
from turnwise.sandbox.scratch_folders import disk_usage
from turnwise.sandbox.types import MEBIBYTE, RunStatus, SandboxLimits

TICK_S = 0.02
SLEEPY_AFTER_S = 1.0
"""The thread goes on ticking for this long after the last call, so that a call need not wake it."""
MOST_MAPPINGS = 1 << 15
"""Of a session's processes together, where there are several: half of what the kernel gives each of them, about ten MiB
of its memory. Honest ones have hundreds each.
"""
LOOKS_FOR_MAPPINGS = 5
"""They are counted at every so many looks: their lists are long."""


@dataclass(kw_only=True, slots=True, eq=False)
class WatchedCall:
    """One running call. Why it was interrupted or killed is written here and read by the call when it ends."""

    pid: int
    pidfd: int
    scratch: str
    """Empty where the kernel limits the files itself."""
    base_bytes: int
    """What a process had in memory, of the zygote's, before it did anything."""
    timeout_s: float
    deadline: float
    interrupted: str = ""
    kill_at: float = field(default=float("inf"))
    status: RunStatus | None = None
    reason: str = ""
    looks: int = 0

    def interrupt(self, why: str, *, grace_s: float) -> None:
        """Once: the code may clean up and its variables survive."""
        if not self.interrupted:
            self.interrupted = why
            self.kill_at = time.monotonic() + grace_s
            self._send(signal.SIGINT)

    def kill(self, status: RunStatus, reason: str) -> None:
        if self.status is None:
            self.status, self.reason = status, reason
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        with suppress(OSError):  # it was faster
            signal.pidfd_send_signal(self.pidfd, number)


class Watchdog:
    """Of one sandbox: all its running calls."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.limits = limits
        self.socket_bytes = socket_buffer_bytes()
        self.lock = threading.Lock()
        self.watches: set[WatchedCall] = set()
        self.wake = threading.Event()
        self.awake = False
        self.closed = False
        self.thread = threading.Thread(target=self._run, name="sandbox-watchdog", daemon=True)
        self.thread.start()

    def add(self, watch: WatchedCall) -> None:
        with self.lock:
            self.watches.add(watch)
            if not self.awake:
                self.wake.set()

    def remove(self, watch: WatchedCall) -> None:
        """Afterwards no signal is sent for it: its process may already run another call."""
        with self.lock:
            self.watches.discard(watch)

    def close(self) -> None:
        self.closed = True
        self.wake.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.closed:
            self.wake.wait()
            self.wake.clear()
            self._tick_while_needed()

    def _tick_while_needed(self) -> None:
        with self.lock:
            self.awake = True
        last_needed = time.monotonic()
        while not self.closed:
            time.sleep(TICK_S)
            now = time.monotonic()
            with self.lock:
                watches = list(self.watches)
                if not watches and now > last_needed + SLEEPY_AFTER_S:
                    self.awake = False
                    return
            last_needed = now if watches else last_needed
            for watch in watches:
                try:
                    self._check(watch, now)
                except Exception as error:  # whatever it is: what cannot be watched must not run
                    watch.kill("killed", f"it could not be watched: {error}")

    def _check(self, watch: WatchedCall, now: float) -> None:
        """Measuring may take long; acting is done only if the call is still the one that was measured."""
        late = now >= watch.deadline
        verdict = ("timeout", "it did not stop") if now >= watch.kill_at else self._over_limit(watch)
        with self.lock:
            if watch not in self.watches:
                return
            if verdict is not None:
                status, reason = verdict
                watch.kill(status, reason)  # type: ignore[arg-type]
            elif late:
                watch.interrupt("timeout", grace_s=self.limits.grace_s)

    def _over_limit(self, watch: WatchedCall) -> tuple[str, str] | None:
        pids = [watch.pid, *descendants(watch.pid)]
        usages = [found for found in map(process_usage, pids) if found is not None]
        if sum(found.threads for found in usages) > self.limits.processes:
            return "killed", f"it had more than {self.limits.processes} processes and threads"
        most = self.limits.memory_mb * MEBIBYTE
        kernel = sum(found.table_bytes for found in usages) + buffer_bytes(pids, self.socket_bytes)
        pages = sum(max(0, found.resident_bytes - watch.base_bytes) for found in usages)
        if pages + kernel > most and self._confirmed(pids, kernel):
            return "memory", f"it used more than {self.limits.memory_mb} MiB of memory"
        if self._too_many_mappings(watch, pids):
            return "memory", f"its processes had more than {MOST_MAPPINGS} mappings of memory"
        return self._over_disk(watch)

    def _confirmed(self, pids: list[int], kernel: int) -> bool:
        if len(pids) == 1:
            return True
        sizes = [proportional_bytes(pid) for pid in pids]
        pages = sum(size for size in sizes if size is not None)
        return pages + kernel > self.limits.memory_mb * MEBIBYTE or None in sizes

    def _too_many_mappings(self, watch: WatchedCall, pids: list[int]) -> bool:
        watch.looks += 1
        due = len(pids) > 1 and watch.looks % LOOKS_FOR_MAPPINGS == 0
        return due and count_mappings(pids, MOST_MAPPINGS) > MOST_MAPPINGS

    def _over_disk(self, watch: WatchedCall) -> tuple[str, str] | None:
        if not watch.scratch:
            return None
        count, size = disk_usage(watch.scratch, most=self.limits.files)
        if count > self.limits.files:
            return "killed", f"it made more than {self.limits.files} files"
        if size + self._unlinked(watch) > self.limits.scratch_mb * MEBIBYTE:
            return "killed", f"its files took more than {self.limits.scratch_mb} MiB"
        return None

    def _unlinked(self, watch: WatchedCall) -> int:
        return unlinked_file_bytes(watch.pid, watch.scratch, most_each=self.limits.file_mb * MEBIBYTE)
