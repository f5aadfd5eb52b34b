"""The tool `sql`: queries on a SQLite database, read-only in truth."""

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from turnwise.config.keys import read_options
from turnwise.config.section import Positive
from turnwise.core.errors import InfrastructureFailure, UserError
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
"""What a call may take besides the limits of queries before it counts as our failure."""
CONCURRENCY = 8
"""Threads at the same time: more of them share the same few cores."""
LONGEST_SCHEMA = 1500


class SqlOptions(BaseModel):
    """What a recipe says of the tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: Path
    """A SQLite file. It is opened for reading only."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "sql"
    """What the model calls the tool: two databases are two tools, by two names."""
    max_rows: Positive = 20
    """Rows of a result that are shown."""
    max_value: Annotated[int, Field(ge=1_000, le=1_000_000)] = SqlLimits().max_value
    """Bytes of one row. Longer ones cannot be read; with a higher limit one query may keep a core for longer."""
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    """Of one query."""


def make_sql_tool(options: Mapping[str, Any]) -> Tool:
    """A database that cannot be read is the user's to mend, before anything starts."""
    checked = read_options(SqlOptions, options, "the tool sql")
    database = checked.database.expanduser()
    limits = SqlLimits(timeout_s=checked.timeout_s, max_rows=checked.max_rows, max_value=checked.max_value)

    @tool(timeout_s=max_call_seconds(limits), concurrency=CONCURRENCY, pure=True)
    def sql(query: str) -> str:
        return format_table(run_query(database, query, limits))

    sql.__name__ = checked.name
    sql.__doc__ = f"Runs a query on a SQLite database, read-only. Tables: {_tables(_schema(database))}"
    return from_function(sql)


def max_call_seconds(limits: SqlLimits) -> float:
    """What a call may take: one query may have to wait until all others at its side have each been run alone."""
    return (CONCURRENCY + 1) * (limits.timeout_s + LATE_S) + GRACE_S


def _schema(database: Path) -> Schema:
    try:
        return read_schema(database)
    except (sqlite3.Error, OSError, InfrastructureFailure) as error:
        raise UserError(f"the tool sql cannot read {database} ({error}): give a SQLite file") from error


def _tables(schema: Schema) -> str:
    text = ", ".join(f"{table}({', '.join(columns)})" for table, columns in schema.items()) or "none"
    return text if len(text) <= LONGEST_SCHEMA else f"{text[:LONGEST_SCHEMA]}..."


SEPARATOR = " | "
MAX_CELL = 100
"""Characters."""


def format_table(rows: QueryResult, max_cell: int = MAX_CELL) -> str:
    """
    name | age
    Ann | 31
    Bob | NULL
    ... 7 more rows
    """
    lines = [SEPARATOR.join(_cut(_line(name), max_cell) for name in rows.columns)]
    lines += [SEPARATOR.join(_cell(cell, max_cell) for cell in row) for row in rows.rows]
    if rows.omitted_rows:
        lines.append(f"... {_count(rows.omitted_rows)}")
    elif not rows.rows:
        lines.append("(no rows)")
    return "\n".join(lines)


def _count(more: int) -> str:
    if more > MAX_COUNTED_ROWS:
        return f"more than {MAX_COUNTED_ROWS} more rows"
    return f"{more} more row{'s' * (more != 1)}"


def _cell(value: SqlValue, max_cell: int) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return _cut(f"x'{value[:max_cell].hex()}'", max_cell)
    if isinstance(value, str):
        return _cut(_quoted(value[: max_cell + 1]), max_cell)
    return repr(value)


def _quoted(text: str) -> str:
    """Bare, unless it could be taken for NULL, a number, nothing, two cells or two rows."""
    plain = text and text == text.strip() and text[0] not in "'.(" and "|" not in text and len(text.splitlines()) == 1
    if plain and text.upper() != "NULL" and not _is_number(text):
        return text
    quoted = text.replace("'", "''")
    return _line(f"'{quoted}'")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _line(text: str) -> str:
    """Without breaks, which would make two rows of one."""
    return "\\n".join(text.splitlines())


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


BLOCK = re.compile(
    r"```(?:(?!select\b|with\b|values\b)[\w+-]*[ \t]*\n|(?:sqlite|sql)\b)?(.*?)```", re.DOTALL | re.IGNORECASE
)
"""With the name of a language, or with none."""


def extract_query(answer: str) -> str:
    """The last fenced block, or all of it where there is none."""
    blocks = BLOCK.findall(answer)
    return str(blocks[-1] if blocks else answer).strip().removesuffix(";")
