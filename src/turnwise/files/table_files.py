"""Rows of a JSONL, JSON, CSV, Parquet or Arrow file, with the number of the line or entry that each comes from."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from turnwise.core.errors import UserError, read_failure
from turnwise.text.truncation import first_line

ROWS_PER_BATCH = 256
Rows = Iterator[tuple[str, Any]]
"""(source of the row, such as "chats.jsonl line 3"; its value)."""


@contextmanager
def _open_text(file: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a UTF-8 file; some editors start one with a byte order mark."""
    try:
        with file.open(encoding="utf-8-sig", newline=newline) as text:
            yield text
    except UnicodeDecodeError as error:
        raise UserError(f"{read_failure(file, error)}. Save it as UTF-8.") from error


def read_jsonl_rows(file: Path) -> Rows:
    """Read a JSON value per line."""
    with _open_text(file) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{file} line {number}"
                yield where, parse_json(line, where)


def read_json_rows(file: Path) -> Rows:
    """Read a JSON list."""
    with _open_text(file) as text:
        rows = parse_json(text.read(), str(file))
    if not isinstance(rows, list):
        raise UserError(f"{file} is not a JSON list of rows: write [...], or one row per line into a .jsonl file.")
    yield from ((f"{file} entry {number}", row) for number, row in enumerate(rows, start=1))


def read_csv_rows(file: Path) -> Rows:
    """Read a CSV file. The first row names the columns; every value is text."""
    with _open_text(file, newline="") as lines:
        table = csv.DictReader(lines, strict=True)
        try:
            names = table.fieldnames or ()
            if twice := [name for number, name in enumerate(names) if name in names[:number]]:
                raise UserError(f"{file} has two columns called {twice[0]!r}: rename one in its first line.")
            for row in table:
                where = f"{file} line {table.line_num}"
                if None in row or None in row.values():
                    raise UserError(f"{where} has more or fewer values than columns: fix it.")
                yield where, dict(row)
        except csv.Error as error:
            raise UserError(f"{file} line {table.line_num} is not valid CSV ({error}): fix it.") from error


def read_parquet_rows(file: Path) -> Rows:
    """Read a Parquet file, a row group at a time."""
    table = ParquetTable(file)
    yield from _numbered(file, (row for group in range(len(table.sizes)) for row in table.read(group)))


def read_arrow_rows(file: Path) -> Rows:
    """Read an Arrow stream, such as `datasets` writes."""
    pyarrow = _import_pyarrow(file)
    with _arrow_errors(file, pyarrow), pyarrow.memory_map(str(file)) as source:
        table = pyarrow.ipc.open_stream(source).read_all()
        yield from _numbered(file, (row for batch in table.to_batches(ROWS_PER_BATCH) for row in batch.to_pylist()))


def _numbered(file: Path, rows: Iterable[Any]) -> Rows:
    yield from ((f"{file} row {number}", row) for number, row in enumerate(rows, start=1))


class ParquetTable:
    """A Parquet file whose row groups are read one at a time."""

    def __init__(self, file: Path) -> None:
        self._file, self._pyarrow = file, _import_pyarrow(file)
        with _arrow_errors(file, self._pyarrow):
            self._table = self._pyarrow.parquet.ParquetFile(file)
        groups = range(self._table.num_row_groups)
        self.sizes = [self._table.metadata.row_group(number).num_rows for number in groups]
        """Rows of each row group."""

    def read(self, group: int) -> list[Any]:
        with _arrow_errors(self._file, self._pyarrow):
            rows: list[Any] = self._table.read_row_group(group).to_pylist()
        return rows


def _import_pyarrow(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{file} needs pyarrow. Run `pip install 'turnwise[datasets]'`, or convert it to .jsonl."
        ) from None
    return pyarrow


@contextmanager
def _arrow_errors(file: Path, pyarrow: Any) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{file} is damaged ({first_line(error, 80)}). Restore it.") from error


READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": read_jsonl_rows,
    ".json": read_json_rows,
    ".csv": read_csv_rows,
    ".parquet": read_parquet_rows,
    ".arrow": read_arrow_rows,
}
"""File name ending -> reader."""


def is_table_file(name: str) -> bool:
    """Return whether the name ends like that of a file in one of the formats."""
    return Path(name).suffix.lower() in READERS


def parse_json(text: str, where: str) -> Any:
    text = text.rstrip()  # else the error in a row that ends too early would be in the next line
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = str(error)[:80]
        if isinstance(error, json.JSONDecodeError):
            line = f"line {error.lineno} " if "\n" in text else ""  # the line of a row is in `where`
            problem = f"{error.msg}, {line}column {error.colno}"
        raise UserError(f"{where} is not valid JSON ({problem}): fix it.") from error
