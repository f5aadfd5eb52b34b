"""Writes that a kill or a full disk cannot leave half-done, and disk errors as one line with the mend."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnwise.core.errors import UserError

LOCK_NAME = ".lock"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
ASIDE_PREFIXES = (".old-", ".removed-", ".writing-")
"""Prefixes of folders that are being replaced, deleted or written."""


@contextmanager
def wrap_disk_errors(path: Path, then: str) -> Iterator[None]:
    """Turns an OSError of writing `path` into a UserError; `then` says how to go on and what is safe."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise UserError(f"no disk space left to write {path}: free some, then {then}") from error
        reason = error.strerror or type(error).__name__
        raise UserError(f"cannot write {path} ({reason}): make that possible, then {then}") from error


def partial_path(path: Path) -> Path:
    """Where `path` is written aside. Hidden, so that what a kill leaves behind is never taken for the file."""
    return path.with_name(f".{path.name}.part")


def is_leftover(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith((".part", ".partial"))


def remove_folder(folder: Path) -> None:
    """Delete a folder. A kill meanwhile leaves a hidden rest, for `remove_leftovers`, and never half of the folder."""
    aside = folder.with_name(f".removed-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside)


def remove_leftovers(folder: Path) -> None:
    """Delete what kills left in a folder while something was written or removed. A user's own files stay."""
    for path in folder.glob(".*"):
        if path.name.startswith(ASIDE_PREFIXES) or is_leftover(path):
            remove_path(path)


def remove_path(path: Path) -> None:
    """Delete a folder with its contents, a file, or a symlink without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Writes `path` whole or not at all. `durable` also survives a power cut, which costs a disk flush."""
    part = partial_path(path)
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def append_bytes(path: Path, data: bytes) -> None:
    """Appends all of `data`, or cuts the file back to what it was, so that no half line stays in its middle."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
    except OSError:
        with suppress(OSError):  # the first error is the one to tell
            os.truncate(path, size)
        raise


class FolderLock:
    """Held until `release` or the end of the process, `kill -9` included: the operating system lets go of it.

    The lock is on the open file, not on its existence, so a file left behind blocks nobody.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / LOCK_NAME).open("ab+", buffering=0)
        try:
            self._take(folder)
        except BaseException:
            self._file.close()
            raise

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{folder} is being written by another process{self._owner()}: "
                "wait for it or stop it, or choose another --record.name"
            ) from error
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode())

    @property
    def held(self) -> bool:
        return not self._file.closed

    def release(self) -> None:
        self._file.close()

    def _owner(self) -> str:
        self._file.seek(0)
        text = self._file.read(20)
        return f" (pid {text.decode()})" if text.isdigit() else ""
