"""Run a program, such as an MCP server or an agent, and make sure that nothing it starts outlives the host.

    python -I -S process_guard.py HOST_PID COMMAND...

The program, called the server here, gets our standard streams. This process is a subreaper (on Linux): processes that
the server leaves behind become its children, even those with their own session, so that all can be found and killed.
That happens when the server has exited, some time after its input was closed, at SIGTERM, and when the host dies in any
way: then its end of the input closes and Linux sends a signal.

There are two processes, a guard and a reaper above it, since a server may kill its guard; what it leaves behind then
belongs to the reaper. The guard kills everything if the reaper is killed. If the server kills both, the host finds the
remaining processes by a marker in their environment.
"""

# Every server pays for the imports of this module: no pathlib, no typing.
# ruff: noqa: PTH123

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

GRACE_S = 1.0
"""Time for the server to exit on its own once its input is closed."""
KILL_S = 2.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
NOT_STARTED = 127


def main(host: int, command: list[str]) -> int:
    """Return the server's exit status; 128 + N for signal N, as in a shell."""
    _adopt_orphans(host)
    reaper, guard = os.getpid(), os.fork()
    if guard == 0:
        try:
            os._exit(_guard(reaper, command))
        finally:
            os._exit(NOT_STARTED)
    return _wait_for_guard(guard)


def _wait_for_guard(guard: int) -> int:
    """Waits for: the guard's exit. Unblocked by: it. Signals are passed on to the guard."""
    for number in HANDLED[1:]:
        signal.signal(number, lambda *_: _pass_on(guard))
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)
    while (status := _reap_children(guard, 0)) is None:
        pass
    _kill_all()
    return status if status >= 0 else 128 - status


def _pass_on(guard: int) -> None:
    with suppress(ProcessLookupError):  # it has just been reaped
        os.kill(guard, signal.SIGTERM)


def _adopt_orphans(parent: int) -> None:
    """Become the parent of orphaned descendants, and end with our own parent."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def _guard(reaper: int, command: list[str]) -> int:
    signals = _open_signal_pipe()
    _adopt_orphans(reaper)
    server = os.fork()
    if server == 0:
        _exec(command)
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 1)  # so that the output ends when the server does
    status = _wait(server, signals)
    _kill_all(server)
    return status if status >= 0 else 128 - status


def _open_signal_pipe() -> int:
    """Return a pipe from which the numbers of received signals can be read."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in HANDLED:
        signal.signal(number, lambda *_: None)
    return reader


def _exec(command: list[str]) -> None:
    """Replace this child process by the server. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the server would inherit that
        os.setpgid(0, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _wait(server: int, signals: int) -> int:
    """Waits for: the server's exit, GRACE_S after the input's end, SIGTERM. Unblocked by: any of them."""
    poller = select.poll()
    poller.register(0, 0)  # only its end is reported: the data is the server's
    poller.register(signals, select.POLLIN)
    deadline = float("inf")
    while (left := deadline - time.monotonic()) > 0:
        ready = {descriptor for descriptor, _ in poller.poll(None if left == float("inf") else 1000 * left)}
        if 0 in ready:
            poller.unregister(0)
            deadline = time.monotonic() + GRACE_S
        if signals in ready and set(os.read(signals, 4096)) - {signal.SIGCHLD}:
            return -signal.SIGTERM
        if (status := _reap_children(server)) is not None:
            return status
    return -signal.SIGKILL


def _reap_children(server: int, options: int = os.WNOHANG) -> int | None:
    """Reap ended children. Return the exit status of `server` once it has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, options)
        except ChildProcessError:
            return NOT_STARTED
        if pid == 0:
            return None
        if pid == server:
            return os.waitstatus_to_exitcode(status)


def _kill_all(group: int | None = None) -> None:
    """Kill our children until none is left, including the orphans that become ours as they die."""
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
    """Our children; empty if the kernel does not list them, so that only the server's group is killed."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, *map(ctypes.c_ulong, (argument, 0, 0, 0)))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
