"""Programs that run under `process_guard.py`: kill them with their descendants, keep the end of their output."""

import asyncio
import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from turnwise.tools.process_guard import KILL_S

POLL_S = 0.01
GUARD_S = 0.5
"""Time for a process guard that lost its reaper to kill its descendants, which may have removed the marker."""
MARKER = "TURNWISE_PROCESS"
"""Environment variable of every such program, by which its descendants are found if the process guard is killed."""
PROCESS_GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("process_guard.py")))

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER")
"""Environment variables that a program inherits. The others may contain keys."""

TAIL_BYTES = 4096
MAX_LINE_CHARS = 200
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
TRAILER = re.compile(r"^\s+at |^Node\.js v|^npm error (\d+\s*$|.*(complete log|Note that you can|tarball, folder))")
"""Lines that node and npm print after the actual error."""


class OutputTail:
    """The end of a program's output, kept for error messages."""

    def __init__(self) -> None:
        self._bytes = b""

    def add(self, data: bytes) -> None:
        self._bytes = (self._bytes + data)[-TAIL_BYTES:]

    @property
    def last_line(self) -> str:
        """Last line that mentions an error, or else the last line."""
        lines = CONTROL.sub("", self._bytes.decode("utf-8", "replace")).split("\n")
        relevant = [line.strip() for line in lines if line.strip() and not TRAILER.search(line)]
        errors = [line for line in relevant if "error" in line.lower()]
        return (errors or relevant or [""])[-1][:MAX_LINE_CHARS]


def inherited_environment() -> dict[str, str]:
    """Return the environment variables that a program may have: none of the others, which may contain keys."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def terminate(process: asyncio.subprocess.Process) -> None:
    """Let the process guard kill the process tree."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)


def kill_marked(marker: str) -> None:
    """Kill all processes with this marker in their environment, until none is left. Linux only."""
    entry, began = f"{MARKER}={marker}".encode(), time.monotonic()
    while (waited_s := time.monotonic() - began) < KILL_S:
        marked = [pid for pid in _list_pids() if entry in _read_list(pid, "environ")]
        if not marked:
            return
        for pid in marked:
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM if waited_s < GUARD_S and _is_guard(pid) else signal.SIGKILL)
        time.sleep(POLL_S)


def _list_pids() -> list[int]:
    proc = Path("/proc")
    return [int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()] if proc.is_dir() else []


def _is_guard(pid: int) -> bool:
    return any(b"process_guard" in word for word in _read_list(pid, "cmdline"))


def _read_list(pid: int, name: str) -> list[bytes]:
    """Environment or command line of a process; empty if it has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []


def describe_exit(status: int) -> str:
    number = -status if status < 0 else status - 128
    if number in set(signal.Signals):
        return f"it was killed by {signal.Signals(number).name}"
    return f"it exited with status {status}"
