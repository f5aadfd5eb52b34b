"""The folder that is viewed: which runs are in it, and its files, none of which lies outside."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from turnwise.core.errors import UserError

CONFIG, PLAN = "config.toml", "evaluation.toml"
MAX_DEPTH = 4
"""How deep below the folder runs are looked for."""
MAX_FOLDERS = 20_000
"""How many folders are looked into, so that a viewer of / answers."""


class NotThere(UserError):
    """What was asked for does not exist here, or no more."""


class Root:
    """A folder of runs, or a single run, which is then all that can be read.

    A run's id is its path below the folder. Every path is resolved and compared before it is opened: `..`, absolute
    paths and links lead nowhere else. What is no plain file is never opened: a pipe would keep its reader for ever.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: train first, or give the folder of your runs")
        folder = folder.resolve()
        self._single = is_run(str(folder))
        self._base = folder.parent if self._single else folder
        self._within = folder
        self.name = folder.name or str(folder)

    def runs(self) -> list[tuple[str, str]]:
        """The id and folder of every run and evaluation, in the order of ids. Links to folders are not followed."""
        found = [str(self._within)] if self._single else walk(str(self._within))
        start = len(str(self._base).rstrip("/")) + 1
        return sorted((path[start:], path) for path in found if is_unicode(path[start:]))

    def run(self, run_id: str) -> Path:
        """The folder of a run."""
        pure = PurePosixPath(run_id)
        refused = not run_id or "\0" in run_id or "\\" in run_id or pure.is_absolute() or ".." in pure.parts
        path = None if refused else self._resolved(self._base / run_id)
        if path is None or not is_run(str(path)):
            raise NotThere(f"there is no run {run_id!r} here: reload the list of runs")
        return path

    def open(self, folder: Path, *parts: str) -> BinaryIO:
        """A file of a run, to read. Raises NotThere where it does not exist or leads outside."""
        shown = "/".join((folder.name, *parts))
        odd = any("/" in part or "\0" in part or part == ".." for part in parts)
        path = None if odd else self._resolved(folder.joinpath(*parts))
        if path is None:
            raise NotThere(f"{shown} is not there, or leads outside the folder that is viewed")
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NotThere(f"cannot read {shown} ({error.strerror}): reload the page") from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise NotThere(f"{shown} is no plain file: look what it is")
        return os.fdopen(handle, "rb")

    def stat(self, folder: Path, name: str) -> os.stat_result | None:
        """What is known of a run's file, or of what it links to; None where it does not exist or leads outside."""
        try:
            found = os.lstat(f"{folder}/{name}")
        except OSError:
            return None
        if not stat.S_ISLNK(found.st_mode):
            return found
        path = self._resolved(folder / name)
        return None if path is None else path.stat()

    def read(self, folder: Path, *parts: str, limit: int) -> bytes:
        """A small file of a run, whole."""
        with self.open(folder, *parts) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise UserError(f"{'/'.join(parts)} is larger than {limit} bytes: too large to show")
        return data

    def _resolved(self, path: Path) -> Path | None:
        """Where `path` leads, if that exists and lies within what is viewed."""
        try:
            found = path.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: a circle of links
            return None
        return found if found.is_relative_to(self._within) else None


def is_run(folder: str) -> bool:
    return is_file(f"{folder}/{CONFIG}") or is_file(f"{folder}/{PLAN}")


def is_file(path: str) -> bool:
    """Return `Path.is_file()`, in a third of the time where there is no link."""
    try:
        mode = os.lstat(path).st_mode
        return stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and Path(path).is_file())
    except (OSError, ValueError):
        return False


def is_unicode(text: str) -> bool:
    """Not so a file name in another encoding, which no address of a page can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def walk(folder: str) -> Iterator[str]:
    """The runs below a folder; what is within a run is not looked at."""
    waiting, looked = [(folder, 0)], 0
    while waiting and looked < MAX_FOLDERS:
        place, depth = waiting.pop()
        looked += 1
        for path in subfolders(place):
            if is_run(path):
                yield path
            elif depth + 1 < MAX_DEPTH:
                waiting.append((path, depth + 1))


def subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [each.path for each in entries if each.is_dir(follow_symlinks=False) and each.name[0] != "."]
    except OSError:  # deleted or closed to us since it was seen
        return []
