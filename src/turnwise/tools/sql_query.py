"""Runs one query, read-only, within limits of time, steps, rows and memory.

Every query has a connection of its own, opened and closed by the thread that runs it (about a third of a
millisecond for all of this): nothing that it does outlives it, and no two episodes share anything. A query that SQLite
does not end in time is left to its thread, which ends some seconds later; nobody waits for it. A database is a file,
which is opened for reading only, or its bytes as `sqlite3.Connection.serialize` gives them, of which the query sees a
copy.
"""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from turnwise.core.errors import InfrastructureFailure
from turnwise.tools.sql_errors import explained, is_agents_fault, is_memory
from turnwise.tools.sql_functions import Functions
from turnwise.tools.sql_gate import Gate
from turnwise.tools.sql_guard import TOO_LONG, Guard, narrow
from turnwise.tools.sql_thread import in_thread
from turnwise.tools.tool import ToolError

Database = Path | bytes
Cell = None | int | float | str | bytes
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
COUNTED = 10_000
"""Rows beyond those that are kept, which are only counted: there may be no end of them."""
WAKE = "SELECT 1 FROM json_each('[]'), json_tree('[]'), pragma_table_info('')"
"""Built-in tables declare themselves when they are first used, which the guard would take for a CREATE."""
TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"

_gate = Gate()


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
class Rows:
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0
    """Rows that were not kept; beyond `COUNTED` they are not counted either."""

    @property
    def complete(self) -> bool:
        return self.more == 0


def run_query(database: Database, query: str, limits: SqlLimits) -> Rows:
    """Blocks, no longer than the limit and a little; call it in a thread.

    ToolError: the query is at fault, also where it takes too long. Anything else: the database cannot be read.

    The memory is SQLite's as a whole, so a query that runs out of it may suffer for another: it runs again alone.
    """
    try:
        return _in_time(_gate.shared, database, query, limits)
    except MemoryError:
        pass
    try:
        return _in_time(partial(_gate.alone, limits.timeout_s + LATE_S), database, query, limits)
    except MemoryError:
        raise ToolError("The query needs too much memory: select less.") from None


def beside_queries(work: Callable[[], Given]) -> Given:
    """For other work with SQLite in this process: where a query has taken all of its memory it is done again, alone.

    It blocks while another is alone. What is done twice must give the same twice.
    """
    try:
        with _gate.shared():
            return work()
    except (MemoryError, sqlite3.Error) as error:
        if not is_memory(error):
            raise
    with _gate.alone(PATIENCE_S):
        return work()


def _in_time(
    gate: Callable[[], AbstractContextManager[None]], database: Database, query: str, limits: SqlLimits
) -> Rows:
    """Its time begins when it is let in: to wait for others is no fault of the query's."""
    began = threading.Event()

    def work() -> Rows:
        with gate():
            began.set()
            return _run(database, query, limits)

    done = in_thread(work)
    done.add_done_callback(lambda _: began.set())  # also where it breaks before it begins
    began.wait()
    try:
        return done.result(limits.timeout_s + LATE_S)
    except TimeoutError:
        if done.done():  # it was the database's own
            raise
        raise ToolError(TOO_LONG) from None


def schema_of(database: Database) -> Schema:
    """What a query can read. Raises sqlite3.Error or OSError where that cannot be told."""
    with closing(_opened(database)) as connection:
        return {table: _columns(connection, table) for table in _tables(connection)}


def _run(database: Database, query: str, limits: SqlLimits) -> Rows:
    with closing(_opened(database)) as connection, closing(Functions(limits.max_value)) as functions:
        tables = _tables(connection)
        functions.replace(connection, query)
        narrow(connection, max_value=limits.max_value, max_columns=limits.max_columns)
        guard = Guard(tables, timeout_s=limits.timeout_s, max_steps=limits.max_steps)
        guard.watch(connection)
        try:
            return _fetched(connection.execute(query), limits)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if is_memory(error):
                raise MemoryError from error
            if refusal := guard.refusal or functions.refusal:
                raise ToolError(refusal) from error
            if is_agents_fault(error):
                raise ToolError(explained(error, schema_of(database))) from error
            raise
        except RecursionError as error:
            raise ToolError("The query is too deeply nested.") from error


def _opened(database: Database) -> sqlite3.Connection:
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


def _fetched(cursor: sqlite3.Cursor, limits: SqlLimits) -> Rows:
    if cursor.description is None:
        raise ToolError("That is no query: write a SELECT.")
    kept: list[tuple[Cell, ...]] = []
    size, more = 0, 0
    for row in cursor:
        size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if not more and len(kept) < limits.max_rows and size <= limits.max_bytes:
            kept.append(row)
        else:
            more += 1
        if more > COUNTED:
            break
    return Rows(columns=tuple(column[0] for column in cursor.description), rows=tuple(kept), more=more)


def _text(stored: bytes) -> str:
    """A database may hold any bytes as text."""
    return stored.decode("utf-8", errors="replace")
