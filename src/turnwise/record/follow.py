"""Rows of a JSONL file as it grows, whatever state it is in: what readers of a run that goes on need."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from turnwise.record.lines import LineFollower

MAX_LINE = 8 * 1024 * 1024
"""Bytes; longer ones are skipped and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    rows: list[dict[str, Any]]
    reset: bool
    """The file was cut back or replaced, as by a resume: what was read before no longer holds, and all comes again."""


class Follower:
    """Each `poll` gives what is new. A half-written last line waits; a broken one is skipped and counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineFollower(MAX_LINE)
        self._unread = 0

    @property
    def broken(self) -> int:
        return self._unread + self._lines.too_long

    def poll(self) -> Fresh:
        try:
            with self.path.open("rb") as file:
                reset = self._lines.began and self._lines.replaced(file)
                if reset:
                    self._lines.restart()
                    self._unread = 0
                return Fresh(rows=list(self._rows(file)), reset=reset)
        except OSError:
            return Fresh(rows=[], reset=False)

    def each(self) -> Iterator[dict[str, Any]]:
        """Everything that is there now, without holding all of it."""
        try:
            with self.path.open("rb") as file:
                yield from self._rows(file)
        except OSError:
            return

    def read_all(self) -> list[dict[str, Any]]:
        return list(self.each())

    def _rows(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        for block in self._lines.blocks(file):
            for line in block.lines:
                row = parse_line(line)
                if row is None:
                    self._unread += 1
                else:
                    yield row


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None where there is none that can be read."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
