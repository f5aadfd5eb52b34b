"""Program that watches a run's raylet and GCS, and reports in one line that one of them is gone.

Ray ends a process whose raylet is gone at once and without Python's knowledge, and one whose GCS is gone after a minute
with a stack trace. So a process of its own reports it. Needs the standard library only, since it starts with each run.
"""

import os
import select
import socket
import sys
import time

POLL_MS = 1000
PATIENCE_S = 30.0
"""Seconds in which a GCS on another machine may be restarted. Ray itself waits for a minute."""
CONNECT_S = 5.0
RAYLET = "raylet"
LOST = 3
"""Exit status if Ray was lost."""


class Process:
    """A process of this machine. `descriptor` becomes readable when it ends."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.descriptor = name, os.pidfd_open(pid)

    def is_lost(self, ready: set[int], driver_ended: bool) -> bool:
        return self.descriptor in ready


class Address:
    """A port on which a process of Ray listens."""

    descriptor = None

    def __init__(self, name: str, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.name, self._address = name, (host.strip("[]"), int(port))
        self._answered = time.monotonic()

    def is_lost(self, ready: set[int], driver_ended: bool) -> bool:
        """Return whether it has not answered for a while, or does not while the driver has ended."""
        try:
            with socket.create_connection(self._address, timeout=CONNECT_S):
                self._answered = time.monotonic()
                return False
        except OSError:
            return driver_ended or time.monotonic() - self._answered > PATIENCE_S


def watch(driver: int, targets: dict[str, str]) -> str | None:
    """Wait until a target or the driver ends; return the name of a target that ended first.

    A lost raylet takes the driver with it at once, and the driver the GCS, while a lost GCS leaves both running for a
    minute. So if several have ended by the time this process runs again, the raylet was the first.
    """
    try:
        ended = os.pidfd_open(driver)
    except OSError:  # the driver has ended, or the system has no such descriptors
        return None
    parts: list[Address | Process] = []
    for name, target in sorted(targets.items(), key=lambda target: target[0] != RAYLET):
        try:
            parts.append(Address(name, target) if ":" in target else Process(name, int(target)))
        except ProcessLookupError:  # it ended before this program had started
            return name
    poller = select.poll()
    for descriptor in (ended, *(part.descriptor for part in parts)):
        if descriptor is not None:
            poller.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poller.poll(POLL_MS)}
        for part in parts:
            if part.is_lost(ready, ended in ready):
                return part.name
        if ended in ready:
            return None


def main(driver: str, advice: str, *targets: str) -> int:
    """Watch targets of the form NAME=PID or NAME=HOST:PORT."""
    lost = watch(int(driver), dict(target.split("=", 1) for target in targets))
    if lost is None:
        return 0
    cursor = "\n\x1b[?25h" if os.isatty(2) else ""  # a progress display hides it
    os.write(2, f"{cursor}turnwise: Ray's {lost} was lost, and the run with it. {advice}\n".encode())
    return LOST


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
