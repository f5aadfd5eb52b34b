"""Rows of tasks from a JSONL or CSV file: read and checked once, and divided into splits."""

import csv
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError, read_failure
from turnwise.core.task import Split
from turnwise.envs.seeds import FIRST_SEED, split_of_state

QUESTION_COLUMNS = ("question", "prompt", "problem", "input")
"""Columns that may hold the question; the first that a row has counts."""
MAX_BYTES = 1 << 30

Row = dict[str, Any]


def get_question(row: Row) -> str:
    return next(str(row[name]) for name in QUESTION_COLUMNS if name in row)


@lru_cache(maxsize=32)
def rows_of_split(path: str, split: Split | None) -> tuple[Row, ...]:
    """Return the rows of a split: by their column `split` if they have one, else by a hash of the question."""
    rows = read_rows(path)
    selected = tuple(row for row in rows if split in (None, row.get("split") or split_of_state(get_question(row))))
    if not selected:
        raise UserError(f"{path} has no row for the split {split}: add rows, or a column split with the value {split}")
    return selected


@lru_cache(maxsize=8)
def read_rows(path: str) -> tuple[Row, ...]:
    """Read and check all rows."""
    file = Path(path).expanduser()
    read = _read_csv if file.suffix.lower() == ".csv" else _read_jsonl
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UserError(f"env.params.tasks: {file} is larger than 1 GiB: use a part of it")
        rows = [_check_row(row, f"{file} line {number}") for number, row in read(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"env.params.tasks: {read_failure(file, error)}: give a JSONL or CSV file") from error
    if not rows:
        raise UserError(f"env.params.tasks: {file} has no rows: write one JSON object per line")
    return tuple(rows)


def _read_jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8-sig") as lines:  # some editors start a file with a byte order mark
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _parse_json(line, file, number)


def _parse_json(line: str, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} line {number} is not valid JSON ({str(error)[:80]}): fix it") from error


def _read_csv(file: Path) -> Iterator[tuple[int, Any]]:
    """The first row names the columns; every value is text."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        table = csv.DictReader(lines, strict=True)
        try:
            for row in table:
                if None in row or None in row.values():
                    raise UserError(f"{file} line {table.line_num} has more or fewer values than columns: fix it")
                yield table.line_num, dict(row)
        except csv.Error as error:
            raise UserError(f"{file} line {table.line_num} is not valid CSV ({error}): fix it") from error


def _check_row(row: Any, where: str) -> Row:
    if not isinstance(row, dict) or not any(name in row for name in QUESTION_COLUMNS):
        raise UserError(f"{where} has no question: add one of the columns {', '.join(QUESTION_COLUMNS)}")
    if row.get("split") not in (None, "", *FIRST_SEED):
        raise UserError(f"{where}: unknown split {row['split']!r}: use {', '.join(FIRST_SEED)}, or leave it out")
    return row
