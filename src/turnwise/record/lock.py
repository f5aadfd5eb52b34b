"""One writer a run folder."""

import fcntl
import os
from pathlib import Path

from turnwise.core.errors import UserError

LOCK_NAME = ".lock"


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
