"""Heartbeats of actors: a thread beside the work reports what the process does. Needs no torch.

A process that computes for long, such as a first compilation, still answers; one that is stopped does not.
"""

import faulthandler
import os
import platform
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ray

HEART = "heart"
"""Ray's concurrency group of `BeatingActor.heartbeat`, which runs in a thread of its own."""
WRITING_S = 2.0
"""Longest time for a process to write its stacks."""
STATES = {
    "T": "its process is stopped, as by SIGSTOP",
    "t": "its process is held by a debugger",
    "D": "its process waits for a disk or a driver",
    "Z": "its process has ended",
}
"""What the letters of /proc/PID/stat mean, where they explain a silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Where an actor's process is, and what it does."""

    host: str
    pid: int
    node: str
    """Ray's id of its node."""
    stacks: int | None
    """File descriptor to which the process writes its stacks on SIGUSR2; None if the system cannot."""
    activity: str
    """What it does, or did last, as in "during optimizer step for 12 s"."""


class BeatingActor:
    """Base class of a run's actors."""

    _activity: tuple[str, float, float | None] = ("start", time.monotonic(), None)
    """What it does or did last, when that began, and when it ended; None as long as it runs."""

    @ray.method(concurrency_group=HEART)
    def heartbeat(self) -> Heartbeat:
        (activity, began, ended), now = self._activity, time.monotonic()
        past = "" if ended is None else f"after {activity}, which ended {now - ended:.0f} s before"
        return Heartbeat(
            host=platform.node(),
            pid=os.getpid(),
            node=ray.get_runtime_context().get_node_id(),
            stacks=open_stacks_file(),
            activity=past or f"during {activity} for {now - began:.0f} s",
        )

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Report this activity in heartbeats. Of several at the same time, the one that began last."""
        began = time.monotonic()
        self._activity = (activity, began, None)
        try:
            yield
        finally:
            if self._activity == (activity, began, None):
                self._activity = (activity, began, time.monotonic())


@cache
def open_stacks_file() -> int | None:
    """Let SIGUSR2 write the stacks of all threads into a file in memory; return its descriptor.

    That needs neither the interpreter nor its lock, so it works while code in C does not return.
    """
    if not hasattr(os, "memfd_create"):  # not Linux
        return None
    file = os.memfd_create("stacks")
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
    return file


def inspect_process(pid: int, stacks: int | None) -> tuple[str, str]:
    """Return why a process of this machine may be silent, or "", and the stacks of its threads, if it can write them.

    `stacks`: of its heartbeat.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ("its process has ended" if Path("/proc/self").exists() else ""), ""
    if state in "TtZ" or stacks is None:
        return STATES.get(state, ""), ""
    os.kill(pid, signal.SIGUSR2)
    deadline, text = time.monotonic() + WRITING_S, ""
    while time.monotonic() < deadline:
        time.sleep(WRITING_S / 20)
        before, text = text, Path(f"/proc/{pid}/fd/{stacks}").read_text(errors="replace")
        if text and text == before:
            break
    return STATES.get(state, ""), text
