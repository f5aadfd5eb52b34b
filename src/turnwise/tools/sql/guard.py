"""Permissions of a query: it may read the tables of its database, with harmless functions.

While compiling a statement, SQLite asks an authorizer about every single action, so comments, unusual spelling and
views hide nothing. Whatever is not explicitly allowed is denied.

Some built-in functions are replaced. Dates know neither the current time nor the time zone, so that equal queries give
equal results. `trim` and `unhex` with a set of characters take time proportional to the product of both lengths, and
`printf` with %.2147483647c counts to that number whatever the length limit: both inside a single step of SQLite's
virtual machine, which nothing can interrupt.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Iterable
from functools import partial, reduce

PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"})
"""Pragmas that read the schema. Others reveal more: `database_list` returns paths of this machine."""
BUILTIN_TABLES = frozenset({"json_each", "json_tree", "sqlite_master", "sqlite_schema", "pragma_table_info"})
"""Allowed tables that every database has. Others, such as dbstat and sqlite_stmt, expose internals."""
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
"""Allowed functions: deterministic, fast on short values, without access to files, extensions or the library."""
FUNCTIONS = frozenset(FUNCTION_NAMES.split())
CHECK_INTERVAL = 100
"""Steps of SQLite's virtual machine between two checks of the clock. SQLite checks only at jumps, so all functions of a
result row may run between two checks: hence the limits on functions, steps and values."""
MAX_FUNCTIONS = 50
"""Function calls written in one query."""
TOO_LONG = "The query takes too long: make it simpler."
TOO_MANY = f"The query calls more than {MAX_FUNCTIONS} functions: make it simpler."

DATES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime")
TRIMS: dict[str, Callable[[str, str], str]] = {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}
FORMATS = ("printf", "format")
OVERRIDDEN = re.compile("|".join((*DATES, *TRIMS, *FORMATS, "unhex")), re.IGNORECASE)
"""A statement that calls one of these contains its name, however it is written."""
OVERRIDDEN_CALL = re.compile(rf"\b(?:{OVERRIDDEN.pattern})\W*\(", re.IGNORECASE)
CONVERSION = re.compile(r"%((?:[-+ #!0,l]|[1-9][0-9]*+|\*|\.(?:\*|[0-9]*+))*+)(.)", re.DOTALL)
COUNT = re.compile(r"(\.?)(\*|[1-9][0-9]*|(?<=\.)0[0-9]*)")
"""Width or, after a point, precision: a number, or * to take it from the arguments."""
CURRENT_TIME = frozenset({"now", "localtime", "utc"})
NO_CURRENT_TIME = "The present and the time zone differ between runs: write the date out."
UNHEX_ONE_ARGUMENT = "unhex takes one value here, without characters to ignore."

_Value = None | int | float | str | bytes


class QueryGuard:
    """Authorizer and progress handler of one query. SQLite calls both in the query's thread."""

    def __init__(self, tables: Iterable[str], *, timeout_s: float, max_steps: int) -> None:
        self._tables = {name.lower() for name in tables} | BUILTIN_TABLES
        self._deadline = time.monotonic() + timeout_s
        self._checks_left = max_steps // CHECK_INTERVAL
        self._functions = 0
        self.refusal = ""
        """Why the guard stopped the query, if SQLite's own error does not say so."""

    def install(self, connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(self._should_stop, CHECK_INTERVAL)
        connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """SQLite's authorizer; the meaning of the two names depends on the action.

        A READ without a column counts rows, possibly of a table that the query itself defines and names.
        """
        self._functions += action == sqlite3.SQLITE_FUNCTION
        if self._functions > MAX_FUNCTIONS:
            self.refusal = self.refusal or TOO_MANY
        if time.monotonic() > self._deadline:  # compiling takes time too, and nothing else interrupts it
            self.refusal = self.refusal or TOO_LONG
        allowed = not self.refusal and (
            action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE)
            or (action == sqlite3.SQLITE_READ and (not second or (first or "").lower() in self._tables))
            or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS)
            or (action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in PRAGMAS)
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _should_stop(self) -> bool:
        """SQLite's progress handler: True stops the query."""
        self._checks_left -= 1
        if self._checks_left < 0 or time.monotonic() > self._deadline:
            self.refusal = self.refusal or TOO_LONG
        return bool(self.refusal)


def set_connection_limits(connection: sqlite3.Connection, *, max_value: int, max_columns: int) -> None:
    """Set SQLite's own limits. Call it after reading the schema, which may exceed what a query is allowed."""
    limits = {
        sqlite3.SQLITE_LIMIT_LENGTH: max_value,
        sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
        sqlite3.SQLITE_LIMIT_COLUMN: max_columns,
        sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
        sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
        sqlite3.SQLITE_LIMIT_VDBE_OP: 5_500,  # each use of an alias copies its expression, with all of its functions
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
        sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
        sqlite3.SQLITE_LIMIT_ATTACHED: 0,
        sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
        sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    }
    for name, value in limits.items():
        connection.setlimit(name, value)


class FunctionOverrides:
    """Replacements of SQLite functions for one query, used in its thread."""

    def __init__(self, max_value: int) -> None:
        """`max_value`: maximum bytes of a text."""
        self._max_value = max_value
        self._builtin: sqlite3.Connection | None = None
        """Empty database for calling SQLite's own functions."""
        self.refusal = ""
        """Why a function stopped the query; SQLite's error does not say."""

    def install(self, connection: sqlite3.Connection, query: str) -> None:
        """Replace the functions on `connection`. If views call them, the schema must be trusted for that."""
        schema = "\n".join(str(sql) for (sql,) in connection.execute("SELECT sql FROM sqlite_master"))
        if OVERRIDDEN_CALL.search(schema):
            connection.execute("PRAGMA trusted_schema = on")
        if not OVERRIDDEN.search(f"{schema}\n{query}"):
            return  # the usual case; creating them takes a good part of a short query's time
        for name in DATES:
            connection.create_function(name, -1, partial(self._date, name), deterministic=True)
        for name, strip in TRIMS.items():
            connection.create_function(name, 2, partial(self._trim, strip), deterministic=True)
        for name in FORMATS:
            connection.create_function(name, -1, self._printf, deterministic=True)
        connection.create_function("unhex", 2, self._unhex, deterministic=True)

    def close(self) -> None:
        if self._builtin is not None:
            self._builtin.close()

    def _date(self, name: str, *arguments: _Value) -> _Value:
        times = [_normalize_time(value) for value in (arguments[1:] if name == "strftime" else arguments)]
        if not times or times[0].startswith("subsec") or not CURRENT_TIME.isdisjoint(times):
            self.refusal = NO_CURRENT_TIME  # without a time, or with only "subsec", they return the current time
            raise ValueError(NO_CURRENT_TIME)
        return self._call_builtin(f"SELECT {name}({', '.join('?' * len(arguments))})", *arguments)

    def _trim(self, strip: Callable[[str, str], str], text: _Value, characters: _Value) -> str | None:
        if text is None or characters is None:
            return None
        return strip(self._to_text(text), self._to_text(characters))

    def _printf(self, *arguments: _Value) -> _Value:
        """SQLite's printf, but NULL at once for a character repeated beyond the length limit. SQLite counts first."""
        template = arguments[0] if arguments else None
        if template is not None and self._repeats_too_often(self._to_text(template), list(arguments[1:])):
            return None
        return self._call_builtin(f"SELECT printf({', '.join('?' * len(arguments))})", *arguments)

    def _repeats_too_often(self, template: str, arguments: list[_Value]) -> bool:
        arguments.reverse()
        for options, conversion in CONVERSION.findall(template.partition("\0")[0]):
            precision = 0
            for point, count in COUNT.findall(options):
                number = self._to_int32(arguments.pop() if arguments else 0) if count == "*" else _parse_count(count)
                precision = abs(number) if point else precision
            if conversion == "c" and precision > self._max_value:
                return True
            if conversion not in "%n" and arguments:
                arguments.pop()
        return False

    def _to_int32(self, value: _Value) -> int:
        """Convert to a 32-bit integer, as SQLite's C code does."""
        number = self._call_builtin("SELECT CAST(? AS INTEGER)", value)
        return (int(number or 0) + 2**31) % 2**32 - 2**31

    def _unhex(self, *arguments: _Value) -> _Value:
        self.refusal = UNHEX_ONE_ARGUMENT
        raise ValueError(UNHEX_ONE_ARGUMENT)

    def _to_text(self, value: int | float | str | bytes) -> str:
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="replace")
        return value if isinstance(value, str) else str(self._call_builtin("SELECT CAST(? AS TEXT)", value))

    def _call_builtin(self, query: str, *arguments: _Value) -> _Value:
        if self._builtin is None:
            self._builtin = sqlite3.connect(":memory:", isolation_level=None)
            self._builtin.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._max_value)
        (value,) = self._builtin.execute(query, arguments).fetchone()
        if not isinstance(value, None | int | float | str):
            raise TypeError(f"a function of SQLite returned {type(value).__name__}")
        return value


def _normalize_time(value: _Value) -> str:
    """A date argument as SQLite reads it: bytes are text, which ends at a null character."""
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
    return text.partition("\0")[0].strip().lower()


def _parse_count(digits: str) -> int:
    """A number in a format as SQLite parses it, keeping the last 31 bits."""
    return reduce(lambda number, digit: (10 * number + int(digit)) & 0x7FFFFFFF, digits, 0)
