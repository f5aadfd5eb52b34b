"""What a query may do: read the tables of its database, with functions that are known to be harmless.

SQLite asks an authorizer about every single thing a statement would do while it is compiled, so what stands in
comments, other spellings or views makes no difference. Whatever is not allowed here is forbidden.
"""

import sqlite3
import time
from collections.abc import Iterable

PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"})
"""All of them read the schema. `database_list`, for one, would tell paths of this machine."""
VIRTUAL = frozenset({"json_each", "json_tree", "sqlite_master", "sqlite_schema", "pragma_table_info"})
"""Tables that every database has. Others, such as dbstat and sqlite_stmt, look behind the scenes."""
FUNCTION_NAMES = """
abs acos acosh asin asinh atan atan2 atanh avg bm25 ceil ceiling char coalesce concat concat_ws cos cosh count
cume_dist date datetime degrees dense_rank exp first_value floor format
glob group_concat hex highlight if ifnull iif instr json json_array json_array_length json_extract
json_group_array json_group_object json_insert json_object json_quote json_remove json_replace json_set
json_type json_valid julianday lag last_value lead length like likelihood likely ln log log10 log2 lower ltrim match
max median min mod nth_value ntile nullif octet_length percent_rank percentile pi pow power printf quote radians
rank replace round row_number rtrim sign sin sinh snippet soundex sqrt strftime string_agg substr substring subtype
sum tan tanh time total trim trunc typeof unhex unicode unixepoch unlikely upper zeroblob -> ->>
"""
"""No chance and no present (equal queries give equal results), no files, no extensions, nothing about the library
itself, none that takes long on short values."""
FUNCTIONS = frozenset(FUNCTION_NAMES.split())
EVERY = 100
"""Steps of SQLite's machine between two looks at the clock. It looks only where its program jumps, so between two looks
as many functions may run as stand in one row of the result: hence the limits of these, of steps and of values."""
MAX_FUNCTIONS = 50
"""In one query, as often as it says them."""
TOO_LONG = "The query takes too long: make it simpler."
TOO_MANY = f"The query calls more than {MAX_FUNCTIONS} functions: make it simpler."


class Guard:
    """One query's permission. It is asked while the query is compiled and while it runs, always in its own thread."""

    def __init__(self, tables: Iterable[str], *, timeout_s: float, max_steps: int) -> None:
        self._tables = {name.lower() for name in tables} | VIRTUAL
        self._deadline = time.monotonic() + timeout_s
        self._left = max_steps // EVERY
        self._functions = 0
        self.refusal = ""
        """Why it ended the query, where SQLite does not say so itself."""

    def allows(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """SQLite's authorizer: what the two texts mean depends on the action.

        To READ no column is to count rows, also of a table that the query itself makes, by a name of its own.
        """
        self._functions += action == sqlite3.SQLITE_FUNCTION
        if self._functions > MAX_FUNCTIONS:
            self.refusal = self.refusal or TOO_MANY
        if time.monotonic() > self._deadline:  # compiling takes time too, and nothing else interrupts it
            self.refusal = self.refusal or TOO_LONG
        fine = not self.refusal and (
            action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (action == sqlite3.SQLITE_READ and (not second or (first or "").lower() in self._tables))
            or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS)
            or (action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in PRAGMAS)
        )
        return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY

    def ends(self) -> bool:
        """SQLite's progress handler, every so many steps: whether the query must stop now."""
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._deadline:
            self.refusal = self.refusal or TOO_LONG
        return bool(self.refusal)

    def watch(self, connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(self.ends, EVERY)
        connection.set_authorizer(self.allows)


def narrow(connection: sqlite3.Connection, *, max_value: int, max_columns: int) -> None:
    """SQLite's own limits. After the schema was read: that may be wider than a query may be."""
    limits = {
        sqlite3.SQLITE_LIMIT_LENGTH: max_value,
        sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
        sqlite3.SQLITE_LIMIT_COLUMN: max_columns,
        sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
        sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
        sqlite3.SQLITE_LIMIT_VDBE_OP: 5_500,  # an alias is a copy: one function may stand in many places
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
        sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
        sqlite3.SQLITE_LIMIT_ATTACHED: 0,
        sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
        sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    }
    for name, value in limits.items():
        connection.setlimit(name, value)
