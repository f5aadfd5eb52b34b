"""Shared by all isolation tiers: the jail interface, resource limits and /proc; and the tier without isolation."""

import os
import resource
import signal
from typing import Protocol

from turnwise.sandbox.scratch_folders import ScratchFolders, remove_tree
from turnwise.sandbox.syscalls import JailError, die_with_parent
from turnwise.sandbox.types import MEBIBYTE, SandboxLimits

NO_CORE_FILE = 1
"""RLIMIT_CORE. Crash handlers behind a pipe (apport, systemd) run at 0, but not at 1."""


class Jail(Protocol):
    """One isolation tier, as the zygote uses it. `enter` and `seal` run in the child that becomes a session."""

    single_process: bool
    """The session has no child processes to end after a call."""

    def build(self) -> None:
        """Prepare the zygote, before libraries are imported."""

    def measure_base_memory(self) -> None:
        """Record the memory of the imported libraries, which is not charged to sessions."""

    def before_fork(self) -> str:
        """Prepare the fork of a session; return its scratch folder."""

    def after_fork(self) -> None:
        """Undo `before_fork` in the zygote."""

    def enter(self, scratch: str) -> None:
        """Isolate the session's process."""

    def seal(self) -> None:
        """Set limits and install the filter: the last steps, which cannot be undone."""

    def remove(self, scratch: str) -> int | None:
        """Remove an ended session's scratch folder; return the pid of a child that still does it."""

    def describe(self) -> str:
        """Describe the isolation in a few words."""

    def close(self) -> None:
        """Remove everything that is left."""


class NoJail:
    """Resource limits only: code runs with all rights of the user. For `unsafe_subprocess`; never chosen by default."""

    single_process = True
    """Children are not ended: without a pid namespace they cannot all be found."""

    def __init__(self, limits: SandboxLimits, scratch: str) -> None:
        self.limits = limits
        self.folders = ScratchFolders(scratch)
        self.base_bytes = 0

    def build(self) -> None:
        """Nothing to build."""

    def measure_base_memory(self) -> None:
        self.base_bytes = address_space_bytes(open_proc())

    def before_fork(self) -> str:
        return self.folders.create(None)

    def after_fork(self) -> None:
        """Nothing to undo."""

    def enter(self, scratch: str) -> None:
        os.setsid()
        prefer_for_oom_kill(open_proc())
        os.chdir(scratch)

    def seal(self) -> None:
        set_resource_limits(self.limits, base_bytes=self.base_bytes, count_processes=False)
        die_with_parent(signal.SIGKILL)

    def remove(self, scratch: str) -> int | None:
        return self.folders.remove(scratch)

    def describe(self) -> str:
        return "no isolation"

    def close(self) -> None:
        remove_tree(self.folders.base)


def set_resource_limits(limits: SandboxLimits, *, base_bytes: int | None, count_processes: bool) -> None:
    """Limit this process and its children, soft and hard alike, so that nothing can be raised again.

    `base_bytes`: address space that is not charged; None: the address space is not limited.
    `count_processes`: set RLIMIT_NPROC, which counts all processes of a user, so only where that user has one session.
    """
    if base_bytes is not None:
        _lower_limit(resource.RLIMIT_AS, base_bytes + limits.memory_mb * MEBIBYTE)
    _lower_limit(resource.RLIMIT_FSIZE, limits.file_mb * MEBIBYTE)
    _lower_limit(resource.RLIMIT_NOFILE, limits.open_files)
    _lower_limit(resource.RLIMIT_CPU, limits.cpu_s)
    _lower_limit(resource.RLIMIT_CORE, NO_CORE_FILE)
    _lower_limit(resource.RLIMIT_MEMLOCK, 0)
    _lower_limit(resource.RLIMIT_MSGQUEUE, 0)
    _lower_limit(resource.RLIMIT_SIGPENDING, 256)
    _lower_limit(resource.RLIMIT_STACK, 8 * MEBIBYTE)
    if count_processes:
        _lower_limit(resource.RLIMIT_NPROC, limits.processes)


def _lower_limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def open_proc() -> int:
    """Return a handle of /proc that stays valid after the root is swapped."""
    return os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def open_path(path: str) -> int:
    """Return a handle that stays valid after the change of user, who may not be allowed to enter a home folder."""
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise JailError(f"open {path}: {error.strerror}") from None


def write_proc_file(proc: int, name: str, text: str) -> None:
    """Write in one piece: the kernel takes a uid or gid map in a single write."""
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError as error:
        raise JailError(f"open /proc/{name}: {error.strerror}") from None
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise JailError(f"write /proc/{name}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def prefer_for_oom_kill(proc: int) -> None:
    """Let the kernel kill this session before the trainer when the machine runs out of memory."""
    write_proc_file(proc, "self/oom_score_adj", "1000")


def address_space_bytes(proc: int) -> int:
    """Return the address space of this process, which RLIMIT_AS limits."""
    descriptor = os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return int(os.read(descriptor, 100).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)
