"""Enforce the limits of running calls from outside, every 20 ms.

The watchdog runs in a thread: a busy event loop must not extend a time limit.

waits for: the next tick; when idle, the next call. unblocked by: the clock; `add`.
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
IDLE_AFTER_S = 1.0
"""Seconds of ticking after the last call, so that the next one need not wake the thread."""
MAX_MAPPINGS = 1 << 15
"""Mappings of all processes of a session with several: half of the kernel's limit for one process, about 10 MiB of
kernel memory. Ordinary processes have hundreds.
"""
TICKS_PER_MAPPINGS_COUNT = 5
"""Ticks between two counts of mappings: reading the lists is slow."""


@dataclass(kw_only=True, slots=True, eq=False)
class WatchedCall:
    """One running call. The watchdog records here why it interrupted or killed the session."""

    pid: int
    pidfd: int
    scratch: str
    """Scratch folder to be measured; empty if the kernel limits it."""
    base_bytes: int
    """Resident bytes that every process shares with the zygote."""
    timeout_s: float
    deadline: float
    interrupted: str = ""
    """Limit that caused the interrupt: "timeout", "output" or none."""
    kill_at: float = field(default=float("inf"))
    status: RunStatus | None = None
    """Set once the session was killed."""
    reason: str = ""
    ticks: int = 0

    def interrupt(self, limit: str, *, grace_s: float) -> None:
        """Send SIGINT, once: the code may clean up, and its variables survive."""
        if not self.interrupted:
            self.interrupted = limit
            self.kill_at = time.monotonic() + grace_s
            self._send(signal.SIGINT)

    def kill(self, status: RunStatus, reason: str) -> None:
        if self.status is None:
            self.status, self.reason = status, reason
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        with suppress(OSError):  # already exited
            signal.pidfd_send_signal(self.pidfd, number)


class Watchdog:
    """Watches all running calls of one sandbox."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.limits = limits
        self.socket_bytes = socket_buffer_bytes()
        self.lock = threading.Lock()
        self.calls: set[WatchedCall] = set()
        self.wake = threading.Event()
        self.ticking = False
        self.closed = False
        self.thread = threading.Thread(target=self._run, name="sandbox-watchdog", daemon=True)
        self.thread.start()

    def add(self, call: WatchedCall) -> None:
        with self.lock:
            self.calls.add(call)
            if not self.ticking:
                self.wake.set()

    def remove(self, call: WatchedCall) -> None:
        """Stop watching. No signal is sent afterwards: the process may already run another call."""
        with self.lock:
            self.calls.discard(call)

    def close(self) -> None:
        self.closed = True
        self.wake.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.closed:
            self.wake.wait()
            self.wake.clear()
            self._tick_until_idle()

    def _tick_until_idle(self) -> None:
        with self.lock:
            self.ticking = True
        last_busy = time.monotonic()
        while not self.closed:
            time.sleep(TICK_S)
            now = time.monotonic()
            with self.lock:
                calls = list(self.calls)
                if not calls and now > last_busy + IDLE_AFTER_S:
                    self.ticking = False
                    return
            last_busy = now if calls else last_busy
            for call in calls:
                try:
                    self._check(call, now)
                except Exception as error:  # a session that cannot be watched must not run
                    call.kill("killed", f"it could not be watched: {error}")

    def _check(self, call: WatchedCall, now: float) -> None:
        """Measure, which may take long, then act only if the same call still runs."""
        late = now >= call.deadline
        verdict = ("timeout", "it did not stop") if now >= call.kill_at else self._over_limit(call)
        with self.lock:
            if call not in self.calls:
                return
            if verdict is not None:
                status, reason = verdict
                call.kill(status, reason)  # type: ignore[arg-type]
            elif late:
                call.interrupt("timeout", grace_s=self.limits.grace_s)

    def _over_limit(self, call: WatchedCall) -> tuple[str, str] | None:
        pids = [call.pid, *descendants(call.pid)]
        usages = [usage for usage in map(process_usage, pids) if usage is not None]
        if sum(usage.threads for usage in usages) > self.limits.processes:
            return "killed", f"it had more than {self.limits.processes} processes and threads"
        limit = self.limits.memory_mb * MEBIBYTE
        kernel = sum(usage.table_bytes for usage in usages) + buffer_bytes(pids, self.socket_bytes)
        pages = sum(max(0, usage.resident_bytes - call.base_bytes) for usage in usages)
        if pages + kernel > limit and self._is_over_memory(pids, kernel):
            return "memory", f"it used more than {self.limits.memory_mb} MiB of memory"
        if self._has_too_many_mappings(call, pids):
            return "memory", f"its processes had more than {MAX_MAPPINGS} mappings of memory"
        return self._over_disk(call)

    def _is_over_memory(self, pids: list[int], kernel: int) -> bool:
        """Confirm with proportional sizes: resident sizes count shared pages once per process."""
        if len(pids) == 1:
            return True
        sizes = [proportional_bytes(pid) for pid in pids]
        pages = sum(size for size in sizes if size is not None)
        return pages + kernel > self.limits.memory_mb * MEBIBYTE or None in sizes

    def _has_too_many_mappings(self, call: WatchedCall, pids: list[int]) -> bool:
        call.ticks += 1
        due = len(pids) > 1 and call.ticks % TICKS_PER_MAPPINGS_COUNT == 0
        return due and count_mappings(pids, MAX_MAPPINGS) > MAX_MAPPINGS

    def _over_disk(self, call: WatchedCall) -> tuple[str, str] | None:
        if not call.scratch:
            return None
        count, size = disk_usage(call.scratch, max_files=self.limits.files)
        if count > self.limits.files:
            return "killed", f"it made more than {self.limits.files} files"
        size += unlinked_file_bytes(call.pid, call.scratch, max_file_bytes=self.limits.file_mb * MEBIBYTE)
        if size > self.limits.scratch_mb * MEBIBYTE:
            return "killed", f"its files took more than {self.limits.scratch_mb} MiB"
        return None
