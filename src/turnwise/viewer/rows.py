"""Readers of `metrics.jsonl`: each row is taken once, and all is forgotten when the file becomes another."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.record.jsonl_follower import LineFollower
from turnwise.viewer.lines import read_row
from turnwise.viewer.root import NotThere, Root

METRICS = "metrics.jsonl"
MAX_LINE = 1 << 20


class RowReader(ABC):
    def __init__(self, root: Root, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._follower = LineFollower(MAX_LINE)
        self._forget()

    @abstractmethod
    def _forget(self) -> None: ...

    @abstractmethod
    def _add(self, row: Mapping[str, Any] | None) -> None:
        """None: a line that could not be read."""

    def refresh(self, limit: int | None = None) -> int:
        """Read what is new, or about `limit` bytes of it, and return how much that was. Not for two threads at once."""
        try:
            with self._root.open(self._folder, METRICS) as file:
                if self._follower.is_replaced(file):
                    self._start_again()
                before = self._follower.offset
                for block in self._follower.read_blocks(file, limit):
                    for line in block.lines:
                        self._add(read_row(line))
                return self._follower.offset - before
        except NotThere:
            if self._follower.has_read:
                self._start_again()
            self._follower.caught_up = True  # there is nothing to read
            return 0

    def _start_again(self) -> None:
        self._follower.restart()
        self._forget()
