"""The tool `sql`: read-only queries on a SQLite database, with results as a text table."""

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from turnwise.core.errors import InfrastructureFailure, UserError, not_a_file
from turnwise.settings.options import read_options
from turnwise.settings.section import Positive
from turnwise.text.truncation import shorten
from turnwise.tools.function import from_function, tool
from turnwise.tools.sql.query import (
    LATE_S,
    MAX_COUNTED_ROWS,
    QueryResult,
    Schema,
    SqlLimits,
    SqlValue,
    read_schema,
    run_query,
)
from turnwise.tools.tool import Tool

GRACE_S = 30.0
"""Added to the time that queries may take for the timeout of a call."""
CONCURRENCY = 8
"""Queries at the same time; more threads would share the same few cores."""
MAX_SCHEMA_CHARS = 1500
CELL_SEPARATOR = " | "
MAX_CELL_CHARS = 100
FENCED_BLOCK = re.compile(
    r"```(?:(?!select\b|with\b|values\b)[\w+-]*[ \t]*\n|(?:sqlite|sql)\b)?(.*?)```", re.DOTALL | re.IGNORECASE
)
"""Fenced block with or without the name of a language."""


class SqlOptions(BaseModel):
    """Settings of the tool in a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: Path
    """SQLite file, opened read-only."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "sql"
    """Name by which the model calls the tool. Two databases are two tools with different names."""
    max_rows: Positive = 20
    """Rows of a result that are shown."""
    max_value: Annotated[int, Field(ge=1_000, le=1_000_000)] = SqlLimits().max_value
    """Maximum bytes of a row; longer ones cannot be read. With a higher limit a query can occupy a core for longer."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Per query."""


def make_sql_tool(options: Mapping[str, Any]) -> Tool:
    """Create the tool. Raises UserError if the database cannot be read."""
    checked = read_options(SqlOptions, options, "the tool sql")
    database = checked.database.expanduser()
    limits = SqlLimits(timeout_s=checked.timeout_s, max_rows=checked.max_rows, max_value=checked.max_value)

    @tool(timeout_s=max_call_seconds(limits), concurrency=CONCURRENCY, pure=True)
    def sql(query: str) -> str:
        return format_table(run_query(database, query, limits))

    sql.__name__ = checked.name
    sql.__doc__ = f"Runs a query on a SQLite database, read-only. Tables: {_format_schema(_check_database(database))}"
    return from_function(sql)


def max_call_seconds(limits: SqlLimits) -> float:
    """Longest duration of a call: it may wait until each of the concurrent queries has run exclusively."""
    return (CONCURRENCY + 1) * (limits.timeout_s + LATE_S) + GRACE_S


def _check_database(database: Path) -> Schema:
    if not database.is_file():
        raise UserError(f"The tool sql: {not_a_file(database)}: give a SQLite file.")
    try:
        return read_schema(database)
    except (sqlite3.Error, OSError, InfrastructureFailure) as error:
        raise UserError(f"The tool sql cannot read {database} ({error}): give a SQLite file.") from error


def _format_schema(schema: Schema) -> str:
    text = ", ".join(f"{table}({', '.join(columns)})" for table, columns in schema.items()) or "none"
    return shorten(text, MAX_SCHEMA_CHARS)


def extract_query(answer: str) -> str:
    """The query in a model's answer: the last fenced block, or the whole text if there is none."""
    blocks = FENCED_BLOCK.findall(answer)
    return str(blocks[-1] if blocks else answer).strip().removesuffix(";")


def format_table(result: QueryResult) -> str:
    """Format a result with one line per row, so that different values never look the same.

    name | age
    Ann | 31
    Bob | NULL
    ... 7 more rows
    """
    lines = [CELL_SEPARATOR.join(shorten(_escape_newlines(name), MAX_CELL_CHARS) for name in result.columns)]
    lines += [CELL_SEPARATOR.join(_format_cell(value) for value in row) for row in result.rows]
    if result.omitted_rows:
        lines.append(f"... {_format_count(result.omitted_rows)}")
    elif not result.rows:
        lines.append("(no rows)")
    return "\n".join(lines)


def _format_count(omitted: int) -> str:
    if omitted > MAX_COUNTED_ROWS:
        return f"more than {MAX_COUNTED_ROWS} more rows"
    return f"{omitted} more row{'s' * (omitted != 1)}"


def _format_cell(value: SqlValue) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return shorten(f"x'{value[:MAX_CELL_CHARS].hex()}'", MAX_CELL_CHARS)
    if isinstance(value, str):
        return shorten(_quote(value[: MAX_CELL_CHARS + 1]), MAX_CELL_CHARS)
    return repr(value)


def _quote(text: str) -> str:
    """Quote a text that could be mistaken for NULL, a number, an empty cell, two cells or two rows."""
    plain = text and text == text.strip() and text[0] not in "'.(" and "|" not in text and len(text.splitlines()) == 1
    if plain and text.upper() != "NULL" and not _is_number(text):
        return text
    quoted = text.replace("'", "''")
    return _escape_newlines(f"'{quoted}'")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _escape_newlines(text: str) -> str:
    return "\\n".join(text.splitlines())
