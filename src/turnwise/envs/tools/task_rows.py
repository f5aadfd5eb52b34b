"""Rows of tasks from a JSONL, JSON or CSV file: read and checked once, and divided into splits."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError, read_failure
from turnwise.core.task import Split
from turnwise.envs.param_setting import param_setting
from turnwise.envs.seeds import FIRST_SEED, split_of_state
from turnwise.files.table_files import READERS, read_jsonl_rows
from turnwise.text.truncation import describe_value

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
        count = len({get_question(row) for row in rows})
        raise UserError(
            f"{path} has no row for the split {split}: a hash divides its {count} different questions. Add some, or a "
            f"column split with the value {split}"
        )
    return selected


@lru_cache(maxsize=8)
def read_rows(path: str) -> tuple[Row, ...]:
    """Read and check all rows."""
    return read_table(path, setting=param_setting("tasks"), check=_check_question)


def read_table(path: str, *, setting: str, check: Callable[[Any, str], Row]) -> tuple[Row, ...]:
    """Read the rows of a file. `setting` names it in errors; `check(row, source)` returns the row or raises."""
    file = Path(path).expanduser()
    read = READERS.get(file.suffix.lower(), read_jsonl_rows)
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UserError(f"{setting}: {file} is larger than 1 GiB: use a part of it.")
        rows = [_check_split(check(row, where), where) for where, row in read(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{setting}: {read_failure(file, error)}: give a JSONL or CSV file.") from error
    if not rows:
        if file.suffix.lower() == ".csv":
            raise UserError(f"{setting}: {file} has no rows below the line with the names of its columns: add some.")
        raise UserError(f"{setting}: {file} has no rows: write one JSON object per line.")
    return tuple(rows)


def _check_question(row: Any, where: str) -> Row:
    names = ", ".join(QUESTION_COLUMNS)
    if not isinstance(row, dict):
        raise UserError(f'{where} is {describe_value(row)}, not a JSON object: write {{"question": ...}}.')
    column = next((name for name in QUESTION_COLUMNS if name in row), None)
    if column is None:
        raise UserError(f"{where} has no question: it has {', '.join(map(str, row))}; add one of the columns {names}")
    if isinstance(row[column], list | dict):
        raise UserError(f"{where}: {column} is a list or table, such as messages: give the text of the user's message.")
    if row[column] is None or not str(row[column]).strip():
        raise UserError(f"{where}: {column} is empty: give the text of the user's message, or remove the row.")
    return row


def _check_split(row: Row, where: str) -> Row:
    if row.get("split") not in (None, "", *FIRST_SEED):
        raise UserError(f"{where}: unknown split {row['split']!r}: use {', '.join(FIRST_SEED)}, or remove it.")
    return row
