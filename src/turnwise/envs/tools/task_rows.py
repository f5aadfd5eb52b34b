"""The table of tasks: rows of a JSONL or CSV file, checked once, and told apart by split."""

import csv
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.task import Split
from turnwise.envs.seeds import FIRST_SEED, split_of_state

QUESTION = ("question", "prompt", "problem", "input")
"""Columns that hold the question, the first that a row has."""
MOST_BYTES = 1 << 30

Row = dict[str, Any]


def get_question(row: Row) -> str:
    return next(str(row[name]) for name in QUESTION if name in row)


@lru_cache(maxsize=32)
def rows_of_split(path: str, split: Split | None) -> tuple[Row, ...]:
    """Those of a split: by their column `split` where they have it, else by their question."""
    rows = read_rows(path)
    found = tuple(row for row in rows if split in (None, row.get("split") or split_of_state(get_question(row))))
    if not found:
        raise UserError(f"{path} has no row for {split}: give it more rows, or a column split that says {split}")
    return found


@lru_cache(maxsize=8)
def read_rows(path: str) -> tuple[Row, ...]:
    """All rows, checked once."""
    file = Path(path).expanduser()
    read = _csv if file.suffix.lower() == ".csv" else _jsonl
    try:
        if file.stat().st_size > MOST_BYTES:
            raise UserError(f"env.params.tasks: {file} is larger than 1 GiB: give a part of it")
        rows = [_checked(row, f"{file} line {number}") for number, row in read(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"env.params.tasks: cannot read {file} ({error}): give a JSONL or CSV file") from error
    if not rows:
        raise UserError(f"env.params.tasks: {file} holds no row: give one JSON object a line")
    return tuple(rows)


def _jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8-sig") as lines:  # some editors begin a file with a mark of its encoding
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _json(line, file, number)


def _json(line: str, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} line {number} is no JSON ({str(error)[:80]}): mend it") from error


def _csv(file: Path) -> Iterator[tuple[int, Any]]:
    """The first row names the columns; every value is text."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        table = csv.DictReader(lines, strict=True)
        try:
            for row in table:
                if None in row or None in row.values():
                    raise UserError(f"{file} line {table.line_num} has not as many values as the first row: mend it")
                yield table.line_num, dict(row)
        except csv.Error as error:
            raise UserError(f"{file} line {table.line_num} is no CSV ({error}): mend it") from error


def _checked(row: Any, where: str) -> Row:
    if not isinstance(row, dict) or not any(name in row for name in QUESTION):
        raise UserError(f"{where} has no question: give it one of {', '.join(QUESTION)}")
    if row.get("split") not in (None, "", *FIRST_SEED):
        raise UserError(f"{where}: split is {row['split']!r}: say {', '.join(FIRST_SEED)}, or leave it out")
    return row
