"""Atomic writes and deletes, the folder lock, and disk errors as one line with a fix."""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from turnwise.core.errors import UserError

LOCK_NAME = ".lock"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
SAFETENSOR_ERROR = "SafetensorError"
"""Error of a library that commands without a model do not import."""
ASIDE_PREFIXES = (".old-", ".removed-", ".writing-")
"""Prefixes of folders that are being replaced, deleted or written."""


@contextmanager
def wrap_disk_errors(path: Path, advice: str | Callable[[], str]) -> Iterator[None]:
    """Raise a UserError for an OSError while writing `path`. `advice`: how to continue and what is kept."""
    try:
        yield
    except OSError as error:
        how = advice if isinstance(advice, str) else advice()
        if error.errno in NO_SPACE:
            raise UserError(f"No disk space left to write {path}. Free some space, then {how}.") from error
        reason, named = error.strerror or type(error).__name__, error.filename
        inside = isinstance(named, str) and Path(named).is_relative_to(path)
        raise UserError(f"Cannot write {named if inside else path} ({reason}). Fix that, then {how}.") from error


def check_can_create(folder: Path) -> None:
    """Raise OSError if the folder cannot be created, as far as that shows without writing anything."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    code = errno.EACCES if existing.is_dir() else errno.ENOTDIR
    if code == errno.ENOTDIR or not os.access(existing, os.W_OK | os.X_OK):
        raise OSError(code, os.strerror(code))


def check_readable(path: Path) -> None:
    """Raise UserError if an existing file or folder may not be read."""
    if path.exists() and not os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK):
        raise UserError(f"{path} cannot be read (Permission denied). Change its permissions, or give another path.")


def partial_path(path: Path) -> Path:
    """Return the path of the temporary file. It is hidden, so that a leftover is never mistaken for the file."""
    return path.with_name(f".{path.name}.part")


def is_leftover(path: Path) -> bool:
    """Return whether this is a temporary file of an interrupted write."""
    return path.name.startswith(".") and path.name.endswith((".part", ".partial"))


def remove_folder(folder: Path) -> None:
    """Delete a folder atomically: it is renamed first. `remove_leftovers` deletes what a kill leaves behind."""
    aside = folder.with_name(f".removed-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files and folders of interrupted writes and deletes. The user's own files stay."""
    for path in folder.glob(".*"):
        if path.name.startswith(ASIDE_PREFIXES) or is_leftover(path):
            remove_path(path)


def remove_path(path: Path) -> None:
    """Delete a folder with its contents, a file, or a symlink without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def unused_path(path: Path) -> Path:
    """Return the path, or the path with the first number from 2 on that does not exist yet: NAME-2, NAME-3, ..."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return path if not path.exists() else next(candidate for candidate in numbered if not candidate.exists())


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file completely or not at all. `durable` flushes the disk, so that it also survives a power cut."""
    partial = partial_path(path)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        partial.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that renames in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_bytes(path: Path, data: bytes) -> None:
    """Append all of `data`, or truncate the file to what it was, so that no partial line stays in its middle."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
    except OSError:
        with suppress(OSError):  # raise the first error
            os.truncate(path, size)
        raise


@contextmanager
def atomic_folder(folder: Path, fix: str = "choose a folder with write permission") -> Iterator[Path]:
    """Yield a temporary folder beside `folder` that is renamed to `folder` at the end of the block.

    A killed process leaves nothing that could be taken for the folder. If another process was faster, its folder
    stays and FileExistsError is raised. Other failures to write become UserErrors, so only write in the block.
    `fix`: what to do where the folder cannot be written.
    """
    temporary = folder.parent / f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        _rename(temporary, folder)
    except _LostRaceError as error:
        raise FileExistsError(str(folder)) from error
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != SAFETENSOR_ERROR:
            raise
        raise _write_error(folder, error, fix) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _LostRaceError(Exception):
    pass


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _LostRaceError from error
        raise


def _write_error(folder: Path, error: Exception, fix: str) -> UserError:
    """Explain the failure. safetensors reports errors of the operating system as text only."""
    number = error.errno if isinstance(error, OSError) else None
    if number in NO_SPACE or any(f"os error {code}" in str(error) for code in NO_SPACE):
        return UserError(f"No disk space left to write {folder}: free some space and run this again.")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"Cannot write {folder} ({reason}): {fix}")


class FolderLock:
    """One writer per folder. The operating system releases the lock when the process ends, even by `kill -9`.

    The lock is on the open file, not on its existence: a leftover file does not block the folder.
    """

    def __init__(self, folder: Path, *, chosen_by: str = "record.name") -> None:
        """`chosen_by`: the setting that chooses another folder, for the error message."""
        self._file = (folder / LOCK_NAME).open("ab+", buffering=0)
        try:
            self._acquire(folder, chosen_by)
        except BaseException:
            self._file.close()
            raise

    def _acquire(self, folder: Path, chosen_by: str) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{folder} is being written by another process{self._owner()}. "
                f"Wait for it, stop it, or choose another {chosen_by}."
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
