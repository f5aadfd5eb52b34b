"""The tool `sql`: queries on a SQLite database, read-only in truth."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from turnwise.config.keys import read_options
from turnwise.config.section import Positive
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.tools.function import from_function, tool
from turnwise.tools.sql_query import LATE_S, Schema, SqlLimits, run_query, schema_of
from turnwise.tools.sql_table import table_text
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


def make_sql(options: Mapping[str, Any]) -> Tool:
    """A database that cannot be read is the user's to mend, before anything starts."""
    checked = read_options(SqlOptions, options, "the tool sql")
    database = checked.database.expanduser()
    limits = SqlLimits(timeout_s=checked.timeout_s, max_rows=checked.max_rows, max_value=checked.max_value)

    @tool(timeout_s=longest_s(limits), concurrency=CONCURRENCY, pure=True)
    def sql(query: str) -> str:
        return table_text(run_query(database, query, limits))

    sql.__name__ = checked.name
    sql.__doc__ = f"Runs a query on a SQLite database, read-only. Tables: {_tables(_schema(database))}"
    return from_function(sql)


def longest_s(limits: SqlLimits) -> float:
    """What a call may take: one query may have to wait until all others at its side have each been run alone."""
    return (CONCURRENCY + 1) * (limits.timeout_s + LATE_S) + GRACE_S


def _schema(database: Path) -> Schema:
    try:
        return schema_of(database)
    except (sqlite3.Error, OSError, InfrastructureFailure) as error:
        raise UserError(f"the tool sql cannot read {database} ({error}): give a SQLite file") from error


def _tables(schema: Schema) -> str:
    text = ", ".join(f"{table}({', '.join(columns)})" for table, columns in schema.items()) or "none"
    return text if len(text) <= LONGEST_SCHEMA else f"{text[:LONGEST_SCHEMA]}..."
