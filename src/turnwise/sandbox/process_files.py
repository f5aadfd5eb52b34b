"""Files of a process under /proc, through a handle of it that outlives the loss of /proc itself."""

import os

from turnwise.sandbox.errors import JailError


def open_proc() -> int:
    return os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def write_under(folder: int, name: str, text: str) -> None:
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


def first_to_be_killed(proc: int) -> None:
    """Where the machine runs out of memory, a session goes before the trainer."""
    write_under(proc, "self/oom_score_adj", "1000")


def virtual_bytes(proc: int) -> int:
    """The address space of this process, which RLIMIT_AS counts."""
    descriptor = os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return int(os.read(descriptor, 100).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(descriptor)
