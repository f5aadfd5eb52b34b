"""Whole lines of a file that grows while it is read."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 1 << 20
TAIL = 4096
"""Bytes before the place of reading that must be what they were, else the file is another."""


MAX_LINE = 8 * 1024 * 1024
"""Bytes; longer ones are skipped and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Lines that stand one after another, without their newlines."""

    offset: int
    number: int
    """Of the first line, from 0; lines that were skipped count."""
    lines: list[bytes]

    def offsets(self) -> Iterator[int]:
        offset = self.offset
        for line in self.lines:
            yield offset
            offset += len(line) + 1


class LineFollower:
    """Remembers how far a file was read, so that each line is given once.

    A line counts once its newline is written: a half-written one is left for later. One that is longer than
    `max_line` is skipped and counted in `too_long`.
    """

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self.restart()

    def restart(self) -> None:
        self.offset = self._number = self.too_long = 0
        self._tail = b""
        self._skipping = False
        self.caught_up = False
        """Whether the last reading came to the end of the file."""

    @property
    def has_read(self) -> bool:
        """Whether anything was read."""
        return self.offset > 0

    def is_replaced(self, file: BinaryIO) -> bool:
        """Whether the file is no longer the one that was read: cut back, or written anew. A copy of it is the same."""
        if os.fstat(file.fileno()).st_size < self.offset:
            return True
        file.seek(self.offset - len(self._tail))
        return file.read(len(self._tail)) != self._tail

    def read_blocks(self, file: BinaryIO, limit: int | None = None) -> Iterator[LineBlock]:
        """What is new, in pieces, so that a long file never stands in memory.

        `limit`: bytes after which no further piece is read; `caught_up` then says whether that was all.
        """
        file.seek(self.offset)
        kept, left = b"", math.inf if limit is None else limit
        self.caught_up = False
        while left > 0:
            chunk = file.read(CHUNK)
            if not chunk:
                self.caught_up = True
                return
            left -= len(chunk)
            data = kept + chunk
            whole = data.rfind(b"\n") + 1
            if whole:
                yield from self._take(data[:whole])
                kept = data[whole:]
            else:
                kept = self._without_giant(data)

    def _take(self, data: bytes) -> list[LineBlock]:
        """All lines of `data`, which ends with a newline; too long ones part it into several blocks."""
        blocks: list[LineBlock] = []
        lines: list[bytes] = []
        start, number = self.offset, self._number
        for line in data[:-1].split(b"\n"):
            fits = len(line) <= self._max_line and not self._skipping
            self._skipping = False
            self.offset += len(line) + 1
            self._number += 1
            if fits:
                lines.append(line)
                continue
            self.too_long += 1
            blocks.append(LineBlock(offset=start, number=number, lines=lines))
            lines, start, number = [], self.offset, self._number
        self._tail = (self._tail + data)[-TAIL:]
        blocks.append(LineBlock(offset=start, number=number, lines=lines))
        return [block for block in blocks if block.lines]

    def _without_giant(self, data: bytes) -> bytes:
        """A line that has no end yet: kept while it may still fit, else its start is passed over for good."""
        if len(data) <= self._max_line and not self._skipping:
            return data
        self._skipping = True
        self.offset += len(data)
        self._tail = (self._tail + data)[-TAIL:]
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    rows: list[dict[str, Any]]
    reset: bool
    """The file was cut back or replaced, as by a resume: what was read before no longer holds, and all comes again."""


class JsonlFollower:
    """Each `poll` gives what is new. A half-written last line waits; a broken one is skipped and counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineFollower(MAX_LINE)
        self._unread = 0

    @property
    def broken(self) -> int:
        return self._unread + self._lines.too_long

    def poll(self) -> NewRows:
        try:
            with self.path.open("rb") as file:
                reset = self._lines.has_read and self._lines.is_replaced(file)
                if reset:
                    self._lines.restart()
                    self._unread = 0
                return NewRows(rows=list(self._rows(file)), reset=reset)
        except OSError:
            return NewRows(rows=[], reset=False)

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """Everything that is there now, without holding all of it."""
        try:
            with self.path.open("rb") as file:
                yield from self._rows(file)
        except OSError:
            return

    def read_all(self) -> list[dict[str, Any]]:
        return list(self.iter_rows())

    def _rows(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        for block in self._lines.read_blocks(file):
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
