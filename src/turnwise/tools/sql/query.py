"""Runs one query, read-only, within limits of time, steps, rows and memory.

Every query has a connection of its own, opened and closed by the thread that runs it (about a third of a
millisecond for all of this): nothing that it does outlives it, and no two episodes share anything. A query that SQLite
does not end in time is left to its thread, which ends some seconds later; nobody waits for it. A database is a file,
which is opened for reading only, or its bytes as `sqlite3.Connection.serialize` gives them, of which the query sees a
copy.
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

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.suggestions import nearest
from turnwise.tools.sql.guard import TOO_LONG, FunctionOverrides, QueryGuard, set_connection_limits
from turnwise.tools.sql.threads import SharedLock, run_in_daemon_thread
from turnwise.tools.tool import ToolError

Database = Path | bytes
SqlValue = None | int | float | str | bytes
Schema = dict[str, tuple[str, ...]]
"""Columns by table; views are tables here."""
Given = TypeVar("Given")

HEAP_BYTES = 64 << 20
"""Of all of SQLite in this process together: it has no other limit. Once set, it stays."""
BUSY_S = 1.0
"""How long a writer may hold the file before that counts as a failure."""
LATE_S = 5.0
"""How much longer than its limit a query is waited for: on a busy machine the clock is looked at late."""
PATIENCE_S = 30.0
"""How long other work that needs the memory waits for all queries to end."""
MAX_COUNTED_ROWS = 10_000
"""Rows beyond those that are kept, which are only counted: there may be no end of them."""
WAKE = "SELECT 1 FROM json_each('[]'), json_tree('[]'), pragma_table_info('')"
"""Built-in tables declare themselves when they are first used, which the guard would take for a CREATE."""
TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"

_memory_lock = SharedLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLimits:
    timeout_s: float = 5.0
    max_steps: int = 20_000_000
    """Of SQLite's machine, about a second: what is stopped by these is stopped alike on a busy and on an idle one."""
    max_rows: int = 50
    """Kept; some of those beyond are counted."""
    max_columns: int = 50
    max_value: int = 10_000
    """Bytes of one text or blob, whether it is read or made, and of one row. What it is for: on these no function takes
    more than about a millisecond, and nothing interrupts a function."""
    max_bytes: int = 1_000_000
    """Of all texts and blobs that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    columns: tuple[str, ...]
    rows: tuple[tuple[SqlValue, ...], ...]
    omitted_rows: int = 0
    """Rows that were not kept; beyond `MAX_COUNTED_ROWS` they are not counted either."""

    @property
    def complete(self) -> bool:
        return self.omitted_rows == 0


def run_query(database: Database, query: str, limits: SqlLimits) -> QueryResult:
    """Blocks, no longer than the limit and a little; call it in a thread.

    ToolError: the query is at fault, also where it takes too long. Anything else: the database cannot be read.

    The memory is SQLite's as a whole, so a query that runs out of it may suffer for another: it runs again alone.
    """
    try:
        return _run_in_time(_memory_lock.shared, database, query, limits)
    except MemoryError:
        pass
    try:
        return _run_in_time(partial(_memory_lock.exclusive, limits.timeout_s + LATE_S), database, query, limits)
    except MemoryError:
        raise ToolError("The query needs too much memory: select less.") from None


def run_beside_queries(work: Callable[[], Given]) -> Given:
    """For other work with SQLite in this process: where a query has taken all of its memory it is done again, alone.

    It blocks while another is alone. What is done twice must give the same twice.
    """
    try:
        with _memory_lock.shared():
            return work()
    except (MemoryError, sqlite3.Error) as error:
        if not is_out_of_memory(error):
            raise
    with _memory_lock.exclusive(PATIENCE_S):
        return work()


def _run_in_time(
    gate: Callable[[], AbstractContextManager[None]], database: Database, query: str, limits: SqlLimits
) -> QueryResult:
    """Its time begins when it is let in: to wait for others is no fault of the query's."""
    began = threading.Event()

    def work() -> QueryResult:
        with gate():
            began.set()
            return _run(database, query, limits)

    done = run_in_daemon_thread(work)
    done.add_done_callback(lambda _: began.set())  # also where it breaks before it begins
    began.wait()
    try:
        return done.result(limits.timeout_s + LATE_S)
    except TimeoutError:
        if done.done():  # it was the database's own
            raise
        raise ToolError(TOO_LONG) from None


def read_schema(database: Database) -> Schema:
    """What a query can read. Raises sqlite3.Error or OSError where that cannot be told."""
    with closing(_connect(database)) as connection:
        return {table: _columns(connection, table) for table in _tables(connection)}


def _run(database: Database, query: str, limits: SqlLimits) -> QueryResult:
    with closing(_connect(database)) as connection, closing(FunctionOverrides(limits.max_value)) as functions:
        tables = _tables(connection)
        functions.replace(connection, query)
        set_connection_limits(connection, max_value=limits.max_value, max_columns=limits.max_columns)
        guard = QueryGuard(tables, timeout_s=limits.timeout_s, max_steps=limits.max_steps)
        guard.watch(connection)
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
    place = ":memory:" if isinstance(database, bytes) else _address(database)
    connection = sqlite3.connect(place, uri=True, timeout=BUSY_S, isolation_level=None, cached_statements=0)
    try:
        if isinstance(database, bytes) and database:  # one without tables has no bytes, which Python cannot read
            connection.deserialize(database)
        connection.text_factory = _text
        for setting in (f"hard_heap_limit = {HEAP_BYTES}", "temp_store = memory", "trusted_schema = off"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("PRAGMA query_only = on")
        connection.execute(WAKE)
    except BaseException:
        connection.close()
        raise
    return connection


def _address(file: Path) -> str:
    """`immutable` where the file is in WAL mode and nothing waits in its log: reading it would else write files.

    Elsewhere SQLite's locks are kept, so that a writer beside us is noticed.
    """
    if not file.is_file():
        raise InfrastructureFailure(f"there is no database {file}")
    with file.open("rb") as opened:
        in_wal_mode = opened.read(20)[18:20] == b"\2\2"
    log = file.with_name(f"{file.name}-wal")
    still = in_wal_mode and not (log.is_file() and log.stat().st_size)
    return f"{file.resolve().as_uri()}?mode=ro{'&immutable=1' * still}"


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [str(name) for (name,) in connection.execute(TABLES)]


def _columns(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """None of a view whose own tables are gone: that is no reason not to tell of the others."""
    try:
        return tuple(str(name) for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return ()


def _fetch(cursor: sqlite3.Cursor, limits: SqlLimits) -> QueryResult:
    if cursor.description is None:
        raise ToolError("That is no query: write a SELECT.")
    kept: list[tuple[SqlValue, ...]] = []
    size, more = 0, 0
    for row in cursor:
        size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if not more and len(kept) < limits.max_rows and size <= limits.max_bytes:
            kept.append(row)
        else:
            more += 1
        if more > MAX_COUNTED_ROWS:
            break
    return QueryResult(columns=tuple(column[0] for column in cursor.description), rows=tuple(kept), omitted_rows=more)


def _text(stored: bytes) -> str:
    """A database may hold any bytes as text."""
    return stored.decode("utf-8", errors="replace")


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


def is_out_of_memory(error: Exception) -> bool:
    """SQLite ran out of memory, whether Python sees that by itself or not."""
    out_of_it = (sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR_NOMEM)
    return isinstance(error, MemoryError) or getattr(error, "sqlite_errorcode", None) in out_of_it


def explain_error(error: Exception, schema: Mapping[str, Sequence[str]]) -> str:
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
