"""Whose fault an error of SQLite is, and how the agent is told of its own."""

import re
import sqlite3
from collections.abc import Mapping, Sequence

from turnwise.core.names import nearest

AGENTS_FAULT = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
    }
)
"""Kinds of error that a query brings about. Of others (locked, corrupt, no such file) it is innocent."""
MISSING = re.compile(r"^no such (table|column): (.*)$", re.DOTALL)
LONGEST = 300


def is_agents_fault(error: Exception) -> bool:
    """What never reached SQLite (two statements, too many words, half a character) is the query's fault."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in AGENTS_FAULT
    return isinstance(error, sqlite3.ProgrammingError | sqlite3.DataError | sqlite3.Warning | ValueError)


def is_memory(error: Exception) -> bool:
    """SQLite ran out of memory, whether Python sees that by itself or not."""
    out_of_it = (sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR_NOMEM)
    return isinstance(error, MemoryError) or getattr(error, "sqlite_errorcode", None) in out_of_it


def explained(error: Exception, schema: Mapping[str, Sequence[str]]) -> str:
    """One line; a name that does not exist comes with the nearest that does."""
    if isinstance(error, UnicodeError):
        return "The query holds half a character."
    said = str(error)[:LONGEST]
    missing = MISSING.match(said)
    if missing is None:
        return _about(error, said)
    kind, name = missing.groups()
    bare, names = name.rpartition(".")[2], _names(kind, name, schema)
    return f"{said}:{_elsewhere(bare, schema) if bare in names else nearest(bare, names)}"


def _about(error: Exception, said: str) -> str:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
        return f"{said}: only reading is allowed"
    return f"error: {said}"


def _names(kind: str, name: str, schema: Mapping[str, Sequence[str]]) -> list[str]:
    """Tables; or columns, those of the table that was named, else of all."""
    if kind == "table":
        return list(schema)
    table = name.rpartition(".")[0].lower()
    own = [column for known, columns in schema.items() if known.lower() == table for column in columns]
    return own or [column for columns in schema.values() for column in columns]


def _elsewhere(column: str, schema: Mapping[str, Sequence[str]]) -> str:
    """The column exists, but not where the query looked."""
    return f" it is in {', '.join(table for table, columns in schema.items() if column in columns)}"
