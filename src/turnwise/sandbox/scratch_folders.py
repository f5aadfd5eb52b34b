"""Folders for sessions where no mount can be made: on disk, limited by the watchdog, removed whatever a session put
there.

The host holds a lock on the folder that they stand in. One that nobody locks belongs to a host that was killed
together with its zygote; the next start removes it.
"""

# Paths are the kernel's here: plain strings beside descriptors.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH112

import errno
import fcntl
import itertools
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

BASE_NAME = "turnwise-sandbox-"
REMOVING_S = 2.0


class ScratchFolders:
    """One folder a session, under a base that only its owner can list."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.numbers = itertools.count()

    def create(self, owner: int | None) -> str:
        """`owner`: the user that the session will be, where that is another one."""
        path = f"{self.base}/{next(self.numbers)}"
        os.mkdir(path, 0o700)
        if owner is not None:
            os.chown(path, owner, owner)
        return path

    def remove(self, path: str) -> int | None:
        """At once where it is empty; else a child does it, whose number is given:
        thousands of files must not stop a zygote.
        """
        try:
            os.rmdir(path)
        except OSError:
            child = os.fork()
            if child:
                return child
            try:
                remove_tree(path)
            finally:
                os._exit(0)
        return None


def create_base() -> tuple[str, int]:
    """A new base and the descriptor that holds its lock. It gets its name once it is locked."""
    early = tempfile.mkdtemp(prefix=f".{BASE_NAME}")
    descriptor = os.open(early, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.chmod(early, 0o711)
    base = str(Path(early).with_name(Path(early).name.removeprefix(".")))
    os.rename(early, base)
    return base, descriptor


def remove_base(base: str, lock: int) -> None:
    """Sessions that were killed this moment may still write there: tried again for a while, then left to the next
    start.
    """
    end = time.monotonic() + REMOVING_S
    while os.path.isdir(base) and time.monotonic() < end:
        with suppress(OSError):
            remove_tree(base)
            break
        time.sleep(0.01)
    os.close(lock)


def remove_abandoned_bases() -> None:
    """Bases of hosts that are no more."""
    for path in Path(tempfile.gettempdir()).glob(f"{BASE_NAME}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another user's
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(str(path))
        except OSError:
            continue  # in use, or not to be removed by us
        finally:
            os.close(descriptor)


def remove_tree(top: str) -> None:
    """Of any depth: nested folders are first moved up, so that no path and no stack grows.

    Never follows a link, not even one that takes a folder's place meanwhile: every step goes through an open folder.
    """
    try:
        handle = _opened(top)
    except OSError:
        return
    numbers = itertools.count()
    try:
        waiting = _emptied(handle, handle, numbers)
        while waiting:
            name = waiting.pop()
            folder = _opened(name, handle)
            try:
                waiting += _emptied(folder, handle, numbers)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=handle)
    finally:
        os.close(handle)
    os.rmdir(top)


def _emptied(folder: int, top: int, numbers: Iterator[int]) -> list[str]:
    """Removes what is no folder; folders are moved to the top, under the names that are given."""
    names = []
    for name, is_folder in list(_entries(folder)):
        if not is_folder:
            os.unlink(name, dir_fd=folder)
        elif folder == top:
            names.append(name)
        else:
            os.close(_opened(name, folder))
            names.append(_free_name(top, numbers))
            os.rename(name, names[-1], src_dir_fd=folder, dst_dir_fd=top)
    return names


def _opened(name: str, folder: int | None = None) -> int:
    """A folder, whatever its mode was; OSError where it is a link or none at all."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        path = f"/proc/self/fd/{handle}"
        os.chmod(path, 0o700)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def disk_usage(top: str, *, most: int) -> tuple[int, int]:
    """Number and bytes of what is below a folder; counting stops when there are more than `most`.

    What nobody could count counts as too many: folders deeper than a path can name, and folders that their owner can
    write but not read.
    """
    count = size = 0
    waiting = [top]
    while waiting and count <= most:
        for entry in _listed(waiting.pop()):
            count += 1
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    return most + 1, size
                continue  # removed meanwhile
            size += found.st_blocks * 512
            if stat.S_ISDIR(found.st_mode):
                if found.st_mode & 0o700 == 0o300:
                    return most + 1, size
                waiting.append(entry.path)
    return count, size


def _listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []  # removed meanwhile, or closed for everyone


def _entries(folder: int) -> Iterator[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name, entry.is_dir(follow_symlinks=False)


def _free_name(top: int, numbers: Iterator[int]) -> str:
    return next(name for name in (f".moved-{number}" for number in numbers) if not _exists(name, top))


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
