"""Holds a server and all that it starts, and lets nothing of it outlive its host.

    python -I -S process_guard.py HOST_PID COMMAND...

Standard input, output and errors are the server's. What the server starts and leaves behind becomes a child of this
process (a subreaper, on Linux), even where it made itself a session of its own, so that all of it can be found and
killed: when the server has ended, a while after its input was closed, at SIGTERM, and when the host dies, however it
dies: its end of the input closes, and Linux sends a signal.

It is two processes, a guard and a reaper above it, since a server may kill its guard: what it then leaves behind is
the reaper's. The guard ends all where the reaper is killed. Of a server that kills both, the host finds the rest.
"""

# What is imported here is paid for by every server: no pathlib, no typing.
# ruff: noqa: PTH123

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

GRACE_S = 1.0
"""For the server to end by itself once its input is closed."""
KILL_S = 2.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
NOT_STARTED = 127


def main(host: int, command: list[str]) -> int:
    """The exit status: the server's, 128 and more for a signal, as a shell says it."""
    _adopt_orphans(host)
    reaper, guard = os.getpid(), os.fork()
    if guard == 0:
        try:
            os._exit(_guard(reaper, command))
        finally:
            os._exit(NOT_STARTED)
    return _reap(guard)


def _reap(guard: int) -> int:
    """waits for: the guard's end. unblocked by: it. Signals are the guard's to hear."""
    for number in HEARD[1:]:
        signal.signal(number, lambda *_: os.kill(guard, signal.SIGTERM))
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    while (status := _reaped(guard, 0)) is None:
        pass
    _kill_all()
    return status if status >= 0 else 128 - status


def _adopt_orphans(parent: int) -> None:
    """What is left behind below becomes a child of this process, which ends with its parent."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def _guard(reaper: int, command: list[str]) -> int:
    ears = _listen()
    _adopt_orphans(reaper)
    server = os.fork()
    if server == 0:
        _become(command)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # its output ends when it ends
    status = _wait(server, ears)
    _kill_all(server)
    return status if status >= 0 else 128 - status


def _listen() -> int:
    """Signals arrive as bytes here."""
    ears, mouth = os.pipe()
    for end in (ears, mouth):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    for number in HEARD:
        signal.signal(number, lambda *_: None)
    return ears


def _become(command: list[str]) -> None:
    """Does not return: the child ends as the server, or here."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program would inherit that
        os.setpgid(0, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _wait(server: int, ears: int) -> int:
    """waits for: the server's end, the input's end and a while, SIGTERM. unblocked by: any of them."""
    poller = select.poll()
    poller.register(0, 0)  # no data is asked for: the server reads it; the end is told all the same
    poller.register(ears, select.POLLIN)
    deadline = float("inf")
    while (left := deadline - time.monotonic()) > 0:
        happened = {descriptor for descriptor, _ in poller.poll(None if left == float("inf") else 1000 * left)}
        if 0 in happened:
            poller.unregister(0)
            deadline = time.monotonic() + GRACE_S
        if ears in happened and set(os.read(ears, 4096)) - {signal.SIGCHLD}:
            return -signal.SIGTERM
        if (status := _reaped(server)) is not None:
            return status
    return -signal.SIGKILL


def _reaped(server: int, how: int = os.WNOHANG) -> int | None:
    """The server's status if it has ended. Whatever else has, of those it left behind, is buried too."""
    while True:
        try:
            pid, status = os.waitpid(-1, how)
        except ChildProcessError:
            return NOT_STARTED
        if pid == 0:
            return None
        if pid == server:
            return os.waitstatus_to_exitcode(status)


def _kill_all(group: int | None = None) -> None:
    """Children, and those of theirs that become ours as they die, until there are none."""
    end = time.monotonic() + KILL_S
    while time.monotonic() < end:
        if group is not None:
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        for child in _children():
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _children() -> list[int]:
    """None where the kernel does not say: then the server's group is all that is killed."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as told:
            return [int(word) for word in told.read().split()]
    except OSError:
        return []


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (argument, 0, 0, 0)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
