"""Scratch folders on disk, for tiers without mounts. The watchdog limits their size.

All folders of a host are in one base folder, which the host locks. An unlocked base belongs to a host that was killed
together with its zygote; the next start removes it.
"""

# Paths here are plain strings, as system calls take them.
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
REMOVE_TIMEOUT_S = 2.0


class ScratchFolders:
    """One folder per session, in a base folder that only its owner can list."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.numbers = itertools.count()

    def create(self, owner: int | None) -> str:
        """Create a folder. `owner`: user id of the session; None for the current user."""
        path = f"{self.base}/{next(self.numbers)}"
        os.mkdir(path, 0o700)
        if owner is not None:
            os.chown(path, owner, owner)
        return path

    def remove(self, path: str) -> int | None:
        """Remove a folder: at once if it is empty, else in a child, whose pid is returned.

        Thousands of files must not block the zygote.
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


def create_base(prefix: str = BASE_NAME, parent: str | None = None) -> tuple[str, int]:
    """Create a base and return it with the descriptor of its lock. It gets its final name once it is locked.

    `parent`: folder of the base; None: the temporary folder.
    """
    hidden = tempfile.mkdtemp(prefix=f".{prefix}", dir=parent)
    descriptor = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.chmod(hidden, 0o711)
    base = str(Path(hidden).with_name(Path(hidden).name.removeprefix(".")))
    os.rename(hidden, base)
    return base, descriptor


def remove_base(base: str, lock: int) -> None:
    """Remove a base and release its lock."""
    _remove_used_tree(base)
    os.close(lock)


def _remove_used_tree(base: str) -> None:
    """Remove a folder tree. Retries for a while, since processes that were just killed may still write there."""
    end = time.monotonic() + REMOVE_TIMEOUT_S
    while os.path.isdir(base) and time.monotonic() < end:
        with suppress(OSError):
            remove_tree(base)
            break
        time.sleep(0.01)


def remove_abandoned_bases(prefix: str = BASE_NAME, parent: str | None = None) -> None:
    """Remove the bases of processes that were killed: those whose lock is free."""
    for path in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another user's
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_used_tree(str(path))
        except OSError:
            continue  # in use
        finally:
            os.close(descriptor)


def remove_tree(top: str) -> None:
    """Remove a folder tree of any depth. Nested folders are first moved to the top, so that no path or stack grows.

    Never follows a link, not even one that replaces a folder meanwhile: every step goes through an open descriptor.
    """
    try:
        handle = _open_folder(top)
    except OSError:
        return
    numbers = itertools.count()
    try:
        queue = _empty(handle, handle, numbers)
        while queue:
            name = queue.pop()
            folder = _open_folder(name, handle)
            try:
                queue += _empty(folder, handle, numbers)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=handle)
    finally:
        os.close(handle)
    os.rmdir(top)


def _empty(folder: int, top: int, numbers: Iterator[int]) -> list[str]:
    """Remove the files of a folder and move its folders to the top; return their names there."""
    names = []
    for name, is_folder in list(_entries(folder)):
        if not is_folder:
            os.unlink(name, dir_fd=folder)
        elif folder == top:
            names.append(name)
        else:
            os.close(_open_folder(name, folder))
            names.append(_free_name(top, numbers))
            os.rename(name, names[-1], src_dir_fd=folder, dst_dir_fd=top)
    return names


def _open_folder(name: str, folder: int | None = None) -> int:
    """Open a folder whatever its mode; OSError if it is a link or not a folder."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        path = f"/proc/self/fd/{handle}"
        os.chmod(path, 0o700)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def disk_usage(top: str, *, max_files: int) -> tuple[int, int]:
    """Return the number of files below a folder and their bytes; counting stops above `max_files`.

    Folders that cannot be counted count as too many: those deeper than a path can name, and those that their owner can
    write but not read.
    """
    count = size = 0
    queue = [top]
    while queue and count <= max_files:
        for entry in _list(queue.pop()):
            count += 1
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    return max_files + 1, size
                continue  # removed meanwhile
            size += info.st_blocks * 512
            if stat.S_ISDIR(info.st_mode):
                if info.st_mode & 0o700 == 0o300:
                    return max_files + 1, size
                queue.append(entry.path)
    return count, size


def _list(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []  # removed meanwhile, or unreadable


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
