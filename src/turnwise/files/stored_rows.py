"""Rows of a file by number, read when they are asked for, so that a file may be larger than the memory."""

import os
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError, read_failure
from turnwise.files.table_files import READERS, ParquetTable, parse_json, read_jsonl_rows, read_parquet_rows

MAX_LOADED_BYTES = 1 << 30
"""Largest file of a format that can only be read as a whole."""
CACHED_GROUPS = 4
"""Row groups of a Parquet file that stay in memory."""


class StoredRows(Sequence[Any]):
    """The rows of a file. A row may be read again each time."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self.read(index) for index in range(len(self))[number]]
        return self.read(range(len(self))[number])

    @abstractmethod
    def read(self, number: int) -> Any:
        """Return the row, counted from 0."""

    @abstractmethod
    def source(self, number: int) -> str:
        """Return where the row is, such as "chats.jsonl line 3"."""


class LoadedRows(StoredRows):
    """Rows in memory, each with its source."""

    def __init__(self, file: Path, rows: Sequence[tuple[str, Any]]) -> None:
        super().__init__(file)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, number: int) -> Any:
        return self._rows[number][1]

    def source(self, number: int) -> str:
        return self._rows[number][0]


class JsonLines(StoredRows):
    """The rows of a JSONL file. In memory are their positions alone; the file stays open."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._lines, self._starts, self._sizes = array("q"), array("q"), array("q")
        self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        start = 0
        with open(self._descriptor, "rb", closefd=False) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    self._lines.append(number)
                    self._starts.append(start)
                    self._sizes.append(len(line))
                start += len(line)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, number: int) -> Any:
        # Unlike seek and read, pread leaves alone the position that forked processes share.
        line = os.pread(self._descriptor, self._sizes[number], self._starts[number])
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{read_failure(self.file, error)}. Save it as UTF-8.") from error
        return parse_json(text, self.source(number))

    def source(self, number: int) -> str:
        return f"{self.file} line {self._lines[number]}"


class ParquetRows(StoredRows):
    """The rows of a Parquet file, read a row group at a time."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        table = ParquetTable(file)
        self._ends = list(accumulate(table.sizes))
        self._read_group = lru_cache(maxsize=CACHED_GROUPS)(table.read)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, number: int) -> Any:
        group = bisect_right(self._ends, number)
        return self._read_group(group)[number - (self._ends[group - 1] if group else 0)]

    def source(self, number: int) -> str:
        return f"{self.file} row {number + 1}"


def open_rows(file: Path) -> StoredRows:
    """Open a file of rows. One without a known ending is read as JSONL."""
    reader = READERS.get(file.suffix.lower(), read_jsonl_rows)
    if reader is read_jsonl_rows:
        return JsonLines(file)
    if reader is read_parquet_rows:
        return ParquetRows(file)
    if file.stat().st_size > MAX_LOADED_BYTES:
        raise UserError(f"{file} is larger than 1 GiB, and its format is read as a whole. Convert it to JSONL.")
    return LoadedRows(file, list(reader(file)))
