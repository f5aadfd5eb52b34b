"""Reading a session's processes from outside, through /proc of the host."""

# Paths are the kernel's here: plain strings beside descriptors.
# ruff: noqa: PTH110, PTH115, PTH116, PTH208

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
CHILDREN_KNOWN = os.path.exists("/proc/self/task") and os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Kernels built without CONFIG_PROC_CHILDREN do not say who a process's children are;
then all processes are looked through.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Of one process, now."""

    threads: int
    resident_bytes: int


def usage(pid: int) -> Usage | None:
    """None: it has ended."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in brackets may hold anything
    return Usage(threads=int(fields[17]), resident_bytes=int(fields[21]) * PAGE)


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, however deep."""
    children = _children if CHILDREN_KNOWN else _children_by_search
    found: list[int] = []
    waiting = [pid]
    while waiting:
        news = children(waiting.pop())
        found += news
        waiting += news
    return found


def proportional_bytes(pid: int) -> int | None:
    """Memory with each shared page divided by those who share it; 0 if it has ended, None where it cannot be read.

    Resident sizes of forks count the same pages again and again, and would have innocent ones killed.
    """
    try:
        lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    except PermissionError:
        return None
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:"))]
    return 1024 * sum(sizes)


def pid_of(pidfd: int) -> int:
    """The number of a process in this namespace; 0 or less once it has been reaped."""
    for line in _read(f"/proc/self/fdinfo/{pidfd}").splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return 0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += [int(word) for word in _read(f"/proc/{pid}/task/{thread}/children").split()]
    return found


def _children_by_search(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if int(_read(f"{folder}/stat").rpartition(")")[2].split()[1]) == pid:
                    found.append(int(folder.name))
    return found


def _read(path: str) -> str:
    """All of a small file of /proc; unbuffered, since this runs after every call."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, 1 << 14):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode("utf-8", "replace")


def unlinked_bytes(pid: int, below: str) -> int:
    """Files under a folder that a process holds open although they have no name any more; each counts once."""
    sizes: dict[int, int] = {}
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith(below) and link.endswith(" (deleted)"):
                    found = os.stat(f"/proc/{pid}/fd/{name}")
                    sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())
