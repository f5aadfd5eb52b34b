"""Run one query read-only, with limits on time, steps, rows and memory.

Each query has its own connection, opened and closed in the thread that runs it (about 0.3 ms in all), so it leaves
nothing behind and shares nothing with other episodes. If SQLite does not stop a query in time, its thread is abandoned
and ends some seconds later. A database is a file, opened read-only, or the bytes from `sqlite3.Connection.serialize`,
of which each query gets a copy.
"""

import re
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from turnwise.core.errors import InfrastructureFailure, not_a_file
from turnwise.text.suggestions import suggest
from turnwise.tools.sql.guard import TOO_LONG, FunctionOverrides, QueryGuard, set_connection_limits
from turnwise.tools.sql.threads import SharedLock, run_in_daemon_thread
from turnwise.tools.tool import ToolError

Database = Path | bytes
SqlValue = None | int | float | str | bytes
Schema = dict[str, tuple[str, ...]]
"""Columns by table or view."""
Value = TypeVar("Value")

HEAP_BYTES = 64 << 20
"""Heap limit for all of SQLite in this process (there is no smaller scope). It stays set once it has been set."""
BUSY_S = 1.0
"""Seconds to wait for a writer's lock on the file."""
LATE_S = 5.0
"""Wait for a query beyond its own limit: on a busy machine SQLite checks the clock late."""
EXCLUSIVE_WAIT_S = 30.0
"""Seconds that `run_beside_queries` waits for running queries when it needs all of the memory."""
MAX_COUNTED_ROWS = 10_000
"""Rows beyond the kept ones that are counted; a query can return endlessly many."""
LOAD_BUILTIN_TABLES = "SELECT 1 FROM json_each('[]'), json_tree('[]'), pragma_table_info('')"
"""Built-in tables declare themselves on first use, which the guard would take for CREATE."""
TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"

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
"""Error codes caused by the query. Others (locked, corrupt, missing file) are not the agent's fault."""
MISSING = re.compile(r"^no such (table|column): (.*)$", re.DOTALL)
MAX_ERROR_CHARS = 300

_memory_lock = SharedLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLimits:
    timeout_s: float = 5.0
    max_steps: int = 20_000_000
    """Steps of SQLite's virtual machine, about one second. Unlike the timeout, this limit does not depend on load."""
    max_rows: int = 50
    """Rows kept; further ones are only counted."""
    max_columns: int = 50
    max_value: int = 10_000
    """Bytes per text, blob and row, read or computed. Nothing can interrupt an SQL function; on values of this size
    each takes at most about a millisecond."""
    max_bytes: int = 1_000_000
    """Total bytes of texts and blobs kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    columns: tuple[str, ...]
    rows: tuple[tuple[SqlValue, ...], ...]
    omitted_rows: int = 0
    """Rows not kept; counted up to `MAX_COUNTED_ROWS`."""

    @property
    def complete(self) -> bool:
        return self.omitted_rows == 0


def run_query(database: Database, query: str, limits: SqlLimits) -> QueryResult:
    """Run a query; blocks until its time limit at most, so call it in a thread.

    Raises ToolError if the query is at fault, including when it takes too long; any other exception means that the
    database cannot be read. SQLite's heap limit is shared by all queries, so a query that runs out of memory is run
    again on its own before it is blamed.
    """
    try:
        return _run_in_time(_memory_lock.shared, database, query, limits)
    except MemoryError:
        pass
    try:
        return _run_in_time(partial(_memory_lock.exclusive, limits.timeout_s + LATE_S), database, query, limits)
    except MemoryError:
        raise ToolError("The query needs too much memory: select less.") from None


def run_beside_queries(work: Callable[[], Value]) -> Value:
    """Run other SQLite work in this process; if queries have used up the memory, run it again on its own.

    Blocks while a query runs exclusively. `work` must be repeatable.
    """
    try:
        with _memory_lock.shared():
            return work()
    except (MemoryError, sqlite3.Error) as error:
        if not is_out_of_memory(error):
            raise
    with _memory_lock.exclusive(EXCLUSIVE_WAIT_S):
        return work()


def read_schema(database: Database) -> Schema:
    """Read tables and columns. Raises sqlite3.Error or OSError if the database cannot be read."""
    with closing(_connect(database)) as connection:
        return {table: _columns(connection, table) for table in _tables(connection)}


def _run_in_time(
    lock: Callable[[], AbstractContextManager[None]], database: Database, query: str, limits: SqlLimits
) -> QueryResult:
    """Run in a thread. The time limit starts once the lock is held, so waiting for others does not count."""
    started = threading.Event()

    def work() -> QueryResult:
        with lock():
            started.set()
            return _run(database, query, limits)

    future = run_in_daemon_thread(work)
    future.add_done_callback(lambda _: started.set())  # also if it fails before it starts
    started.wait()
    try:
        return future.result(limits.timeout_s + LATE_S)
    except TimeoutError:
        if future.done():  # raised by the database itself
            raise
        raise ToolError(TOO_LONG) from None


def _run(database: Database, query: str, limits: SqlLimits) -> QueryResult:
    with closing(_connect(database)) as connection, closing(FunctionOverrides(limits.max_value)) as functions:
        tables = _tables(connection)
        functions.install(connection, query)
        set_connection_limits(connection, max_value=limits.max_value, max_columns=limits.max_columns)
        guard = QueryGuard(tables, timeout_s=limits.timeout_s, max_steps=limits.max_steps)
        guard.install(connection)
        try:
            return _fetch(connection.execute(query), limits)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if is_out_of_memory(error):
                raise MemoryError from error
            if refusal := guard.refusal or functions.refusal:
                raise ToolError(refusal) from error
            if is_agents_fault(error):
                raise ToolError(explain_error(error, read_schema(database))) from error
            raise
        except RecursionError as error:
            raise ToolError("The query is too deeply nested.") from error


def _connect(database: Database) -> sqlite3.Connection:
    address = ":memory:" if isinstance(database, bytes) else _read_only_uri(database)
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None, cached_statements=0)
    try:
        if isinstance(database, bytes) and database:  # a database without tables is empty, which Python cannot load
            connection.deserialize(database)
        connection.text_factory = _decode
        for setting in (f"hard_heap_limit = {HEAP_BYTES}", "temp_store = memory", "trusted_schema = off"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("PRAGMA query_only = on")
        connection.execute(LOAD_BUILTIN_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


def _read_only_uri(file: Path) -> str:
    """URI for reading. `immutable` for a file in WAL mode with an empty log, since reading it would write files.

    Otherwise SQLite's locks stay on, so that a concurrent writer is noticed.
    """
    if not file.is_file():
        raise InfrastructureFailure(f"the database {not_a_file(file)}")
    with file.open("rb") as stream:
        in_wal_mode = stream.read(20)[18:20] == b"\2\2"
    log = file.with_name(f"{file.name}-wal")
    immutable = in_wal_mode and not (log.is_file() and log.stat().st_size)
    return f"{file.resolve().as_uri()}?mode=ro{'&immutable=1' * immutable}"


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [str(name) for (name,) in connection.execute(TABLES)]


def _columns(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """Columns of a table; none for a view whose tables are gone, so that the other tables can still be listed."""
    try:
        return tuple(str(name) for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return ()


def _fetch(cursor: sqlite3.Cursor, limits: SqlLimits) -> QueryResult:
    if cursor.description is None:
        raise ToolError("That is not a query: write a SELECT.")
    kept: list[tuple[SqlValue, ...]] = []
    size, omitted = 0, 0
    for row in cursor:
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if not omitted and len(kept) < limits.max_rows and size <= limits.max_bytes:
            kept.append(row)
        else:
            omitted += 1
        if omitted > MAX_COUNTED_ROWS:
            break
    columns = tuple(column[0] for column in cursor.description)
    return QueryResult(columns=columns, rows=tuple(kept), omitted_rows=omitted)


def _decode(stored: bytes) -> str:
    """Decode text, which SQLite does not check to be UTF-8."""
    return stored.decode("utf-8", errors="replace")


def is_agents_fault(error: Exception) -> bool:
    """Whether the query caused the error. Errors raised before SQLite sees the query, such as two statements, count."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in AGENTS_FAULT
    return isinstance(error, sqlite3.ProgrammingError | sqlite3.DataError | sqlite3.Warning | ValueError)


def is_out_of_memory(error: Exception) -> bool:
    codes = (sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR_NOMEM)
    return isinstance(error, MemoryError) or getattr(error, "sqlite_errorcode", None) in codes


def explain_error(error: Exception, schema: Mapping[str, Sequence[str]]) -> str:
    """One line for the agent; an unknown name comes with the closest known one."""
    if isinstance(error, UnicodeError):
        return "The query contains an unpaired surrogate."
    message = str(error)[:MAX_ERROR_CHARS]
    missing = MISSING.match(message)
    if missing is None:
        is_denied = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH
        return f"{message}: only reading is allowed" if is_denied else f"error: {message}"
    kind, name = missing.groups()
    column, names = name.rpartition(".")[2], _known_names(kind, name, schema)
    return f"{message}:{_tables_with(column, schema) if column in names else suggest(column, names)}"


def _known_names(kind: str, name: str, schema: Mapping[str, Sequence[str]]) -> list[str]:
    """All tables; or the columns of the named table, or of all tables if it is unknown."""
    if kind == "table":
        return list(schema)
    table = name.rpartition(".")[0].lower()
    columns = [column for known, columns in schema.items() if known.lower() == table for column in columns]
    return columns or [column for columns in schema.values() for column in columns]


def _tables_with(column: str, schema: Mapping[str, Sequence[str]]) -> str:
    """Hint for a column that exists, but not in the tables of the query."""
    return f" it is in {', '.join(table for table, columns in schema.items() if column in columns)}"
