"""A file of a run that is followed as it grows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from turnwise.record.jsonl_follower import LineBlock, LineFollower
from turnwise.viewer.viewed_folder import FileNotServed, ViewedFolder


class FollowedFile(ABC):
    """Passes each line of a file to `_add` once, and starts again when the file is truncated or replaced.

    Not thread-safe.
    """

    def __init__(self, root: ViewedFolder, folder: Path, file: Sequence[str], max_line: int) -> None:
        self._root, self._folder, self._file = root, folder, file
        self._follower = LineFollower(max_line)
        self._clear()

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _add(self, block: LineBlock) -> None: ...

    def _read_new_lines(self, limit: int | None = None) -> int:
        """Read new lines, about `limit` bytes, and return the number of bytes read. Later calls read the rest."""
        try:
            with self._root.open(self._folder, *self._file) as file:
                if self._follower.is_replaced(file):
                    self._restart()
                before = self._follower.offset
                for block in self._follower.read_blocks(file, limit):
                    self._add(block)
                return self._follower.offset - before
        except FileNotServed:
            if self._follower.has_read:
                self._restart()
            self._follower.caught_up = True  # there is nothing to read
            return 0

    def _restart(self) -> None:
        self._follower.restart()
        self._clear()
