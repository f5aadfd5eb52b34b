"""No jail: resource limits alone. For `unsafe_subprocess`, whose name says it; never chosen by itself."""

import os
import resource
import signal
from typing import Protocol

from turnwise.sandbox.scratch_folders import ScratchFolders, remove_tree
from turnwise.sandbox.syscalls import JailError, die_with_parent
from turnwise.sandbox.types import MEBIBYTE, SandboxLimits


class Jail(Protocol):
    """What a tier gives the zygote."""

    single_process: bool

    def build(self) -> None: ...
    def loaded(self) -> None: ...
    def before_fork(self) -> str: ...
    def after_fork(self) -> None: ...
    def enter(self, scratch: str) -> None: ...
    def seal(self) -> None: ...
    def remove(self, scratch: str) -> int | None: ...
    def describe(self) -> str: ...
    def close(self) -> None: ...


NO_CORE_FILE = 1
"""RLIMIT_CORE: a crash handler behind a pipe (apport, systemd) is run for 0, but not for 1."""


class NoJail:
    """Code runs as the user who started it, with all that this user may do."""

    single_process = True
    """Its children are not hunted: without a pid namespace nobody knows them all."""

    def __init__(self, limits: SandboxLimits, scratch: str) -> None:
        self.limits = limits
        self.folders = ScratchFolders(scratch)
        self.base_bytes = 0

    def build(self) -> None:
        """Nothing is built."""

    def loaded(self) -> None:
        self.base_bytes = address_space_bytes(open_proc())

    def before_fork(self) -> str:
        return self.folders.create(None)

    def after_fork(self) -> None:
        """Nothing: the zygote did not change for the fork."""

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


def set_resource_limits(limits: SandboxLimits, *, base_bytes: int, count_processes: bool) -> None:
    """For this process and its children, soft and hard alike so that nothing can be raised again.

    `count_processes`: only where the kernel counts this session's alone; elsewhere RLIMIT_NPROC counts all of a user's.
    """
    _limit(resource.RLIMIT_AS, base_bytes + limits.memory_mb * MEBIBYTE)
    _limit(resource.RLIMIT_FSIZE, limits.file_mb * MEBIBYTE)
    _limit(resource.RLIMIT_NOFILE, limits.open_files)
    _limit(resource.RLIMIT_CPU, limits.cpu_s)
    _limit(resource.RLIMIT_CORE, NO_CORE_FILE)
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)
    _limit(resource.RLIMIT_SIGPENDING, 256)
    _limit(resource.RLIMIT_STACK, 8 * MEBIBYTE)
    if count_processes:
        _limit(resource.RLIMIT_NPROC, limits.processes)


def _limit(which: int, wanted: int) -> None:
    """Lower a limit; a hard limit that is already lower stays."""
    hard = resource.getrlimit(which)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (value, value))


def open_proc() -> int:
    return os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def write_proc_file(folder: int, name: str, text: str) -> None:
    """One write: the kernel takes a map in a single piece."""
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise JailError(f"open /proc/{name}: {error.strerror}") from None
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise JailError(f"write /proc/{name}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def prefer_for_oom_kill(proc: int) -> None:
    """Where the machine runs out of memory, a session goes before the trainer."""
    write_proc_file(proc, "self/oom_score_adj", "1000")


def address_space_bytes(proc: int) -> int:
    """The address space of this process, which RLIMIT_AS counts."""
    descriptor = os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return int(os.read(descriptor, 100).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)
