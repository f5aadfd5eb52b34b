"""Reads a JSONL file as it grows, whatever state it is in: what readers of a run that goes on need."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 8 * 1024 * 1024
"""Bytes read at once, at most: the rest comes with the next look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    rows: list[dict[str, Any]]
    reset: bool
    """The file was cut back or replaced, as by a resume: what was read before no longer holds, and all comes again."""


class Follower:
    """Each `poll` gives what is new. A half-written last line waits; a broken one is skipped and counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken = 0
        self._offset = 0
        self._file_number: int | None = None

    def poll(self) -> Fresh:
        """What came since, but no more than a chunk of it at once."""
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except OSError:
            return Fresh(rows=[], reset=False)

    def each(self) -> Iterator[dict[str, Any]]:
        """Everything that is there now, without holding all of it."""
        before = -1
        while self._offset > before:
            before = self._offset
            yield from self.poll().rows

    def read_all(self) -> list[dict[str, Any]]:
        return list(self.each())

    def _read(self, file: BinaryIO) -> Fresh:
        found = os.fstat(file.fileno())
        number, size = found.st_ino, found.st_size
        reset = self._file_number is not None and (number != self._file_number or size < self._offset)
        if reset:
            self._offset, self.broken = 0, 0
        self._file_number = number
        file.seek(self._offset)
        data = file.read(CHUNK)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == CHUNK:  # no line is that long: it is passed over
            self._offset += len(data)
            self.broken += 1
            return Fresh(rows=[], reset=reset)
        self._offset += whole
        rows = [row for line in data[:whole].split(b"\n")[:-1] if (row := self._row(line)) is not None]
        return Fresh(rows=rows, reset=reset)

    def _row(self, line: bytes) -> dict[str, Any] | None:
        row = parse_line(line)
        self.broken += row is None
        return row


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None where there is none that can be read."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
