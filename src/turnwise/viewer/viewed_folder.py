"""The viewed folder: its runs and their files. Nothing outside the folder can be read."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from turnwise.core.errors import UserError
from turnwise.files.disk import check_readable
from turnwise.files.run_folders import CONFIG_FILE, EVALUATION_FILE

MAX_DEPTH = 4
"""Folder levels that are searched for runs."""
MAX_FOLDERS = 20_000
"""Folders that are searched, so that even a viewer of / responds."""


class FileNotServed(UserError):
    """The requested run or file does not exist, was deleted, or is outside the viewed folder."""


class ViewedFolder:
    """Read access to a folder of runs, or to a single run.

    A run's id is its path relative to the folder. Every path is resolved and checked before it is opened, so that `..`,
    absolute paths and links cannot leave the folder. Only regular files are opened: reading a pipe could block forever.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UserError(f"No folder {folder}: train first, or give the folder of your runs.")
        check_readable(folder)
        folder = folder.resolve()
        self._is_single_run = is_run(str(folder))
        self._base = folder.parent if self._is_single_run else folder
        self._root = folder
        self.name = folder.name or str(folder)

    def list_runs(self) -> list[tuple[str, str]]:
        """Return the id and folder of every run and evaluation, sorted by id. Links to folders are not followed."""
        paths = [str(self._root)] if self._is_single_run else find_runs(str(self._root))
        start = len(str(self._base).rstrip("/")) + 1
        return sorted((path[start:], path) for path in paths if is_unicode(path[start:]))

    def find_run(self, run_id: str) -> Path:
        """Return the folder of a run. Raises FileNotServed if there is none."""
        pure = PurePosixPath(run_id)
        is_unsafe = not run_id or "\0" in run_id or "\\" in run_id or pure.is_absolute() or ".." in pure.parts
        path = None if is_unsafe else self._resolve(self._base / run_id)
        if path is None or not is_run(str(path)):
            raise FileNotServed(f"No run {run_id!r} in this folder: reload the list of runs.")
        return path

    def shorten_path(self, text: str) -> str:
        """Return an absolute path relative to the viewed folder; of one outside it, the last part.

        A checkpoint keeps the name of its run. Other texts, e.g. names of models on a hub, are returned unchanged.
        """
        path = PurePosixPath(text)
        if not path.is_absolute() or not path.name:
            return text
        if path.is_relative_to(self._base) and path != self._base:
            return str(path.relative_to(self._base))
        return "/".join(path.parts[-3:]) if path.parent.name == "checkpoints" else path.name

    def open(self, folder: Path, *parts: str) -> BinaryIO:
        """Open a file of a run for reading. Raises FileNotServed if it does not exist or is outside the folder."""
        name = "/".join((folder.name, *parts))
        is_unsafe = any("/" in part or "\0" in part or part == ".." for part in parts)
        path = None if is_unsafe else self._resolve(folder.joinpath(*parts))
        if path is None:
            raise FileNotServed(f"{name} does not exist or is outside the viewed folder.")
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise FileNotServed(f"Cannot read {name} ({error.strerror}): reload the page.") from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileNotServed(f"{name} is not a regular file: check what it is.")
        return os.fdopen(handle, "rb")

    def stat(self, folder: Path, name: str) -> os.stat_result | None:
        """Return the status of a run's file, following links; None if it does not exist or is outside the folder."""
        try:
            status = os.lstat(f"{folder}/{name}")
        except OSError:
            return None
        if not stat.S_ISLNK(status.st_mode):
            return status
        path = self._resolve(folder / name)
        return None if path is None else path.stat()

    def read(self, folder: Path, *parts: str, limit: int) -> bytes:
        """Return the contents of a file of at most `limit` bytes. Raises UserError for a larger one."""
        with self.open(folder, *parts) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise UserError(f"{'/'.join(parts)} is larger than {limit} bytes: too large to show.")
        return data

    def list_folders(self, folder: Path, name: str) -> list[Path]:
        """Return the folders in a folder of a run, sorted by name; nothing if it is missing or outside the folder."""
        path = self._resolve(folder / name)
        return [] if path is None else sorted(map(Path, subfolders(str(path))))

    def _resolve(self, path: Path) -> Path | None:
        """Return the real path, or None if it does not exist or is outside the viewed folder."""
        try:
            resolved = path.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links that form a cycle
            return None
        return resolved if resolved.is_relative_to(self._root) else None


def is_run(folder: str) -> bool:
    return is_file(f"{folder}/{CONFIG_FILE}") or is_file(f"{folder}/{EVALUATION_FILE}")


def is_file(path: str) -> bool:
    """Return `Path.is_file()`, in a third of the time unless the path is a link."""
    try:
        mode = os.lstat(path).st_mode
        return stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and Path(path).is_file())
    except (OSError, ValueError):
        return False


def is_unicode(text: str) -> bool:
    """Return False for a file name in another encoding, which a URL cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_runs(folder: str) -> Iterator[str]:
    """Yield the runs below a folder, without searching inside runs."""
    pending, visited = [(folder, 0)], 0
    while pending and visited < MAX_FOLDERS:
        parent, depth = pending.pop()
        visited += 1
        for path in subfolders(parent):
            if is_run(path):
                yield path
            elif depth + 1 < MAX_DEPTH:
                pending.append((path, depth + 1))


def subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except OSError:  # deleted since it was listed, or not readable
        return []
