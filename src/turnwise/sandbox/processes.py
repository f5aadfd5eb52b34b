"""Reading a session's processes from outside, through /proc of the host."""

# Paths are the kernel's here: plain strings beside descriptors.
# ruff: noqa: PTH110, PTH115, PTH116, PTH208

import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

EXITED = (FileNotFoundError, ProcessLookupError)
"""A process has ended. Every other error is one that must be heard: what cannot be watched must not run."""
USAGE_LINES = re.compile(r"^(Threads|VmRSS|VmSwap|VmPTE):\s+(\d+)", re.MULTILINE)
"""In /proc/PID/status, where a process's own name cannot hold an end of line."""
MAX_MAPS_BYTES = 1 << 20
"""Bytes of a list of mappings, some ten thousand of them; honest code has hundreds."""
HAS_CHILDREN_FILES = os.path.exists("/proc/self/task") and os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Kernels built without CONFIG_PROC_CHILDREN do not say who a process's children are;
then all processes are looked through.
"""
FEW_DESCRIPTORS = 64
"""Of all processes together: what they hold is not worth a look at each."""
PIPE_BYTES = 1 << 16
PIECE = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUsage:
    """Of one process, now."""

    threads: int
    resident_bytes: int
    """Pages in memory and on swap."""
    table_bytes: int
    """Page tables: a page here and a page there needs more of them than of pages."""


def process_usage(pid: int) -> ProcessUsage | None:
    """None: it has ended."""
    try:
        found = dict(USAGE_LINES.findall(_read(f"/proc/{pid}/status")))
    except EXITED:
        return None
    pages, swapped, tables = (int(found.get(name, 0)) for name in ("VmRSS", "VmSwap", "VmPTE"))  # none: it is ending
    return ProcessUsage(
        threads=int(found.get("Threads", 0)), resident_bytes=1024 * (pages + swapped), table_bytes=1024 * tables
    )


@contextmanager
def ignore_exited(pid: int) -> Iterator[None]:
    """Around a look at a process: passes over what fails because it has ended, or is about to.

    The files of a process that has given back its memory are root's: to others they are forbidden, not missing.
    """
    try:
        yield
    except EXITED:
        return
    except PermissionError:
        left = process_usage(pid)
        if left is not None and left.resident_bytes:
            raise


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, however deep."""
    children = _children if HAS_CHILDREN_FILES else _children_by_search
    found: list[int] = []
    waiting = [pid]
    while waiting:
        news = children(waiting.pop())
        found += news
        waiting += news
    return found


def is_stopped(pid: int) -> bool:
    """Whether no thread of it runs any more: only then can it start no further process."""
    with suppress(*EXITED):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*EXITED):
                if _read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split()[0] not in "TtZX":
                    return False
    return True


def proportional_bytes(pid: int) -> int | None:
    """Memory with each shared page divided by those who share it; 0 if it has ended, None where it cannot be read.

    Resident sizes of forks count the same pages again and again, and would have innocent ones killed.
    """
    try:
        lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    except EXITED:
        return 0
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:"))]
    return 1024 * sum(sizes)


def pid_of(pidfd: int) -> int:
    """The number of a process in this namespace; 0 or less once it has been reaped."""
    for line in _read(f"/proc/self/fdinfo/{pidfd}").splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return 0


def socket_buffer_bytes() -> int:
    """The most that one end of a pair holds on this machine; the last message may go half beyond its buffer. No session
    can set a larger one.
    """
    ends = socket.socketpair()
    try:
        return ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) * 3 // 2
    finally:
        for end in ends:
            end.close()


def buffer_bytes(pids: Sequence[int], each_socket: int) -> int:
    """The most that sockets and pipes of these processes hold; one that several have counts once."""
    if sum(map(_number_of_descriptors, pids)) <= FEW_DESCRIPTORS:
        return 0
    kinds = [name.partition(":")[0] for name in set().union(*map(_descriptors, pids))]
    return kinds.count("socket") * each_socket + kinds.count("pipe") * PIPE_BYTES


def count_mappings(pids: Sequence[int], most: int) -> int:
    """Of all together, counted up to a little over `most`: a long list takes long to be read."""
    count = 0
    for pid in pids:
        with ignore_exited(pid):
            descriptor = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while count <= most and (piece := os.read(descriptor, PIECE)):
                    count += piece.count(b"\n")
            finally:
                os.close(descriptor)
    return count


def unlinked_file_bytes(pid: int, below: str, *, most_each: int) -> int:
    """Files that a process keeps although they have no name any more: open ones, and files under `below` that are only
    mapped. Each counts once; the size of a mapped one is told to root alone, to others it is `most_each`.
    """
    sizes: dict[int, int] = {}
    with ignore_exited(pid):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with ignore_exited(pid):
                found = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                    sizes[found.st_ino] = found.st_blocks * 512
    with ignore_exited(pid):
        for addresses, inode in _unlinked_mappings(pid, below):
            sizes[inode] = sizes.get(inode) or _mapped_bytes(pid, addresses, most_each)
    return sum(sizes.values())


def _unlinked_mappings(pid: int, below: str) -> list[tuple[str, int]]:
    """Addresses and inodes. A list that is too long to be read again and again is an error."""
    text = _read(f"/proc/{pid}/maps", most=MAX_MAPS_BYTES)
    if len(text) > MAX_MAPS_BYTES:
        raise OSError("too many mappings")
    if " (deleted)" not in text:
        return []
    lines = (line.split(maxsplit=5) for line in text.splitlines() if line.endswith(" (deleted)"))
    return [(words[0], int(words[4])) for words in lines if words[5].startswith(below)]


def _mapped_bytes(pid: int, addresses: str, most: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/map_files/{addresses}").st_blocks * 512
    except OSError:
        return most


def _number_of_descriptors(pid: int) -> int:
    """Since Linux 6.2 it is the size of their folder; before, that is 0."""
    with ignore_exited(pid):
        return os.stat(f"/proc/{pid}/fd").st_size or len(_names(pid))
    return 0


def _descriptors(pid: int) -> set[str]:
    """What they are, such as socket:[8123]."""
    found: set[str] = set()
    for name in _names(pid):
        with ignore_exited(pid):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _names(pid: int) -> list[str]:
    """None of a process that is ending."""
    with ignore_exited(pid):
        return os.listdir(f"/proc/{pid}/fd")
    return []


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(*EXITED):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*EXITED):
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


def _read(path: str, most: int = 1 << 30) -> str:
    """All of a small file of /proc, or a little over `most` bytes; unbuffered, since this runs after every call."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces: list[bytes] = []
        size = 0
        while size <= most and (piece := os.read(descriptor, 1 << 14)):
            pieces.append(piece)
            size += len(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces).decode("utf-8", "replace")
