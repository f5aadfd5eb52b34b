"""Readers of JSONL files that grow while they are read, such as the metrics of a running run."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from turnwise.text.json_objects import parse_object

CHUNK = 1 << 20
TAIL = 4096
"""Bytes before the read position that must be unchanged, else the file was replaced."""


MAX_LINE = 8 * 1024 * 1024
"""Bytes; longer lines are skipped and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Consecutive lines without their newlines."""

    offset: int
    number: int
    """Index of the first line, counted from 0, including skipped lines."""
    lines: list[bytes]

    def offsets(self) -> Iterator[int]:
        """Yield the byte offset of each line."""
        offset = self.offset
        for line in self.lines:
            yield offset
            offset += len(line) + 1


class LineFollower:
    """Returns each complete line of a growing file once.

    A line without its newline is left for the next call. A line longer than `max_line` bytes is skipped and counted in
    `too_long`.
    """

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self.restart()

    def restart(self) -> None:
        self.offset = self._number = self.too_long = 0
        self._tail = b""
        self._skipping = False
        self.caught_up = False
        """The last call reached the end of the file."""

    @property
    def has_read(self) -> bool:
        return self.offset > 0

    def is_replaced(self, file: BinaryIO) -> bool:
        """Return whether the file was truncated or rewritten since it was read; a copy is the same file."""
        if os.fstat(file.fileno()).st_size < self.offset:
            return True
        file.seek(self.offset - len(self._tail))
        return file.read(len(self._tail)) != self._tail

    def read_blocks(self, file: BinaryIO, limit: int | None = None) -> Iterator[LineBlock]:
        """Yield new lines in blocks, so that a large file is never in memory at once.

        Stop after about `limit` bytes; `caught_up` then tells whether the end was reached.
        """
        file.seek(self.offset)
        rest, left = b"", math.inf if limit is None else limit
        self.caught_up = False
        while left > 0:
            chunk = file.read(CHUNK)
            if not chunk:
                self.caught_up = True
                return
            left -= len(chunk)
            data = rest + chunk
            end = data.rfind(b"\n") + 1
            if end:
                yield from self._split(data[:end])
                rest = data[end:]
            else:
                rest = self._drop_if_too_long(data)

    def _split(self, data: bytes) -> list[LineBlock]:
        """Return the lines of `data`, which ends with a newline. A line that is too long starts a new block."""
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

    def _drop_if_too_long(self, data: bytes) -> bytes:
        """Return a line that has no end yet, or nothing if it is already too long; then skip it."""
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
    """The file was truncated or replaced, e.g. by a resume: `rows` are all rows again, and earlier ones are void."""


class JsonlFollower:
    """Returns new rows on each `poll`. Broken lines are skipped and counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineFollower(MAX_LINE)
        self._unparsed = 0

    @property
    def broken(self) -> int:
        return self._unparsed + self._lines.too_long

    def poll(self) -> NewRows:
        try:
            with self.path.open("rb") as file:
                reset = self._lines.has_read and self._lines.is_replaced(file)
                if reset:
                    self._lines.restart()
                    self._unparsed = 0
                return NewRows(rows=list(self._rows(file)), reset=reset)
        except OSError:
            return NewRows(rows=[], reset=False)

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """Yield all rows that are in the file now, without keeping them in memory."""
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
                row = parse_object(line)
                if row is None:
                    self._unparsed += 1
                else:
                    yield row
