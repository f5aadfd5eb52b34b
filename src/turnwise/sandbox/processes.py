"""Read a session's processes from the host's /proc: the process tree, memory, open files.

Memory includes what the kernel holds for a session and no process's size shows: full sockets and pipes, unlinked files
and lists of mappings. One process has little of it; thirty together can have a thousand times their own size.
"""

# Paths here are plain strings, as system calls take them.
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
"""Errors of a process that has exited. All others are raised: a session that cannot be watched must not run."""
USAGE_LINES = re.compile(r"^(Threads|VmRSS|VmSwap|VmPTE):\s+(\d+)", re.MULTILINE)
"""Lines of /proc/PID/status. A process's own name in there cannot contain a newline."""
MAX_MAPS_BYTES = 1 << 20
"""Length of a list of mappings, about ten thousand of them; ordinary code has hundreds."""
HAS_CHILDREN_FILES = os.path.exists("/proc/self/task") and os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Kernels without CONFIG_PROC_CHILDREN do not list a process's children; then all processes are searched."""
FEW_DESCRIPTORS = 64
"""Descriptors of a session below which their buffers are not counted."""
PIPE_BYTES = 1 << 16
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUsage:
    """Resources of one process."""

    threads: int
    resident_bytes: int
    """Pages in memory and in swap."""
    table_bytes: int
    """Page tables, which exceed the pages themselves if these are scattered."""


def process_usage(pid: int) -> ProcessUsage | None:
    """Return the resources of a process; None if it has exited."""
    try:
        usage = dict(USAGE_LINES.findall(_read(f"/proc/{pid}/status")))
    except EXITED:
        return None
    pages, swapped, tables = (int(usage.get(name, 0)) for name in ("VmRSS", "VmSwap", "VmPTE"))  # 0 while exiting
    return ProcessUsage(
        threads=int(usage.get("Threads", 0)), resident_bytes=1024 * (pages + swapped), table_bytes=1024 * tables
    )


@contextmanager
def ignore_exited(pid: int) -> Iterator[None]:
    """Suppress errors of reading a process that has exited or is exiting.

    The /proc files of a process that has released its memory belong to root: others get PermissionError.
    """
    try:
        yield
    except EXITED:
        return
    except PermissionError:
        usage = process_usage(pid)
        if usage is not None and usage.resident_bytes:
            raise


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process."""
    children = _children if HAS_CHILDREN_FILES else _children_by_search
    pids: list[int] = []
    queue = [pid]
    while queue:
        new = children(queue.pop())
        pids += new
        queue += new
    return pids


def is_stopped(pid: int) -> bool:
    """Return whether all threads are stopped: only then can the process start no other."""
    with suppress(*EXITED):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*EXITED):
                if _read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split()[0] not in "TtZX":
                    return False
    return True


def proportional_bytes(pid: int) -> int | None:
    """Return the proportional set size: each shared page divided by its sharers.

    0 if the process has exited, None if the size cannot be read. Resident sizes would count the shared pages of forks
    once per process and kill innocent sessions.
    """
    try:
        lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    except EXITED:
        return 0
    except OSError:
        return None
    sizes = [int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:"))]
    return 1024 * sum(sizes)


def pid_of_pidfd(pidfd: int) -> int:
    """Return the pid in this namespace; 0 or less once the process has been reaped."""
    for line in _read(f"/proc/self/fdinfo/{pidfd}").splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return 0


def socket_buffer_bytes() -> int:
    """Return the most bytes that one end of a socket pair holds on this machine. A session cannot raise it.

    The last message may exceed the buffer by half.
    """
    ends = socket.socketpair()
    try:
        return ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) * 3 // 2
    finally:
        for end in ends:
            end.close()


def buffer_bytes(pids: Sequence[int], bytes_per_socket: int) -> int:
    """Return the most bytes that the sockets and pipes of these processes hold. Shared ones count once."""
    if sum(map(_count_descriptors, pids)) <= FEW_DESCRIPTORS:
        return 0
    types = [target.partition(":")[0] for target in set().union(*map(_descriptor_targets, pids))]
    return types.count("socket") * bytes_per_socket + types.count("pipe") * PIPE_BYTES


def count_mappings(pids: Sequence[int], limit: int) -> int:
    """Count the mappings of all processes, up to a little over `limit`: reading a long list takes long."""
    count = 0
    for pid in pids:
        with ignore_exited(pid):
            descriptor = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while count <= limit and (chunk := os.read(descriptor, CHUNK_BYTES)):
                    count += chunk.count(b"\n")
            finally:
                os.close(descriptor)
    return count


def unlinked_file_bytes(pid: int, folder: str, *, max_file_bytes: int) -> int:
    """Return the bytes of unlinked files that a process keeps open, or mapped from `folder`. Each counts once.

    Only root can read the size of a mapped file; for others it counts as `max_file_bytes`.
    """
    sizes: dict[int, int] = {}
    with ignore_exited(pid):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with ignore_exited(pid):
                info = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(info.st_mode) and info.st_nlink == 0:
                    sizes[info.st_ino] = info.st_blocks * 512
    with ignore_exited(pid):
        for addresses, inode in _unlinked_mappings(pid, folder):
            sizes[inode] = sizes.get(inode) or _mapped_bytes(pid, addresses, max_file_bytes)
    return sum(sizes.values())


def _unlinked_mappings(pid: int, folder: str) -> list[tuple[str, int]]:
    """Return addresses and inodes. Raises OSError for a list too long to be read repeatedly."""
    text = _read(f"/proc/{pid}/maps", limit=MAX_MAPS_BYTES)
    if len(text) > MAX_MAPS_BYTES:
        raise OSError("too many mappings")
    if " (deleted)" not in text:
        return []
    lines = (line.split(maxsplit=5) for line in text.splitlines() if line.endswith(" (deleted)"))
    return [(words[0], int(words[4])) for words in lines if words[5].startswith(folder)]


def _mapped_bytes(pid: int, addresses: str, default: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/map_files/{addresses}").st_blocks * 512
    except OSError:
        return default


def _count_descriptors(pid: int) -> int:
    """Since Linux 6.2 the size of /proc/PID/fd is the count; before, it is 0."""
    with ignore_exited(pid):
        return os.stat(f"/proc/{pid}/fd").st_size or len(_descriptor_names(pid))
    return 0


def _descriptor_targets(pid: int) -> set[str]:
    """Return what the descriptors refer to, such as socket:[8123]."""
    links: set[str] = set()
    for name in _descriptor_names(pid):
        with ignore_exited(pid):
            links.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return links


def _descriptor_names(pid: int) -> list[str]:
    with ignore_exited(pid):
        return os.listdir(f"/proc/{pid}/fd")
    return []


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(*EXITED):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*EXITED):
                children += [int(word) for word in _read(f"/proc/{pid}/task/{thread}/children").split()]
    return children


def _children_by_search(pid: int) -> list[int]:
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if int(_read(f"{folder}/stat").rpartition(")")[2].split()[1]) == pid:
                    pids.append(int(folder.name))
    return pids


def _read(path: str, limit: int = 1 << 30) -> str:
    """Read a file of /proc, up to a little over `limit` bytes. Unbuffered for speed: this runs after every call."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks: list[bytes] = []
        size = 0
        while size <= limit and (chunk := os.read(descriptor, 1 << 14)):
            chunks.append(chunk)
            size += len(chunk)
    finally:
        os.close(descriptor)
    return b"".join(chunks).decode("utf-8", "replace")
