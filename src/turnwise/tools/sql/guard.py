"""What a query may do: read the tables of its database, with functions that are known to be harmless.

SQLite asks an authorizer about every single thing a statement would do while it is compiled, so what stands in
comments, other spellings or views makes no difference. Whatever is not allowed here is forbidden.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Iterable
from functools import partial, reduce

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


class QueryGuard:
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


def set_connection_limits(connection: sqlite3.Connection, *, max_value: int, max_columns: int) -> None:
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


Value = None | int | float | str | bytes
DATES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime")
TRIMS: dict[str, Callable[[str, str], str]] = {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}
FORMATS = ("printf", "format")
NAMED = re.compile("|".join((*DATES, *TRIMS, *FORMATS, "unhex")), re.IGNORECASE)
"""What calls one of them holds its name, however it is written."""
CALLED = re.compile(rf"\b(?:{NAMED.pattern})\W*\(", re.IGNORECASE)
CONVERSION = re.compile(r"%((?:[-+ #!0,l]|[1-9][0-9]*+|\*|\.(?:\*|[0-9]*+))*+)(.)", re.DOTALL)
COUNT = re.compile(r"(\.?)(\*|[1-9][0-9]*|(?<=\.)0[0-9]*)")
"""A width or, after a point, a precision: a number, or * for one among the arguments."""
HERE_AND_NOW = frozenset({"now", "localtime", "utc"})
NO_CURRENT_TIME = "The present and the time zone differ between runs: write the date out."
UNHEX_ONE_ARGUMENT = "unhex takes one value here, without letters to pass over."


class FunctionOverrides:
    """One query's, always in its own thread."""

    def __init__(self, max_value: int) -> None:
        """`max_value`: bytes of one text."""
        self._max_value = max_value
        self._plain: sqlite3.Connection | None = None
        """A database of no tables, whose functions are SQLite's own."""
        self.refusal = ""
        """Why a function ended the query; SQLite says only that one did."""

    def replace(self, connection: sqlite3.Connection, query: str) -> None:
        """Views may use them too, for which SQLite wants our word that these functions are harmless."""
        schema = "\n".join(str(sql) for (sql,) in connection.execute("SELECT sql FROM sqlite_master"))
        if CALLED.search(schema):
            connection.execute("PRAGMA trusted_schema = on")
        if not NAMED.search(f"{schema}\n{query}"):
            return  # as with most queries; to make them is a good part of a short query's time
        for name in DATES:
            connection.create_function(name, -1, partial(self._date, name), deterministic=True)
        for name, trimmed in TRIMS.items():
            connection.create_function(name, 2, partial(self._trim, trimmed), deterministic=True)
        for name in FORMATS:
            connection.create_function(name, -1, self._printf, deterministic=True)
        connection.create_function("unhex", 2, self._unhex, deterministic=True)

    def close(self) -> None:
        if self._plain is not None:
            self._plain.close()

    def _date(self, name: str, *given: Value) -> Value:
        times = [_said(value) for value in (given[1:] if name == "strftime" else given)]
        if not times or times[0].startswith("subsec") or not HERE_AND_NOW.isdisjoint(times):
            self.refusal = NO_CURRENT_TIME  # without a time, or with nothing but "subsec", they mean the present
            raise ValueError(NO_CURRENT_TIME)
        return self._own(f"SELECT {name}({', '.join('?' * len(given))})", *given)

    def _trim(self, trimmed: Callable[[str, str], str], text: Value, letters: Value) -> str | None:
        if text is None or letters is None:
            return None
        return trimmed(self._text(text), self._text(letters))

    def _printf(self, *given: Value) -> Value:
        """SQLite's own, but for a letter that is repeated until no text can hold it: NULL, as SQLite has it at last."""
        if given and given[0] is not None and self._repeats_too_often(self._text(given[0]), list(given[1:])):
            return None
        return self._own(f"SELECT printf({', '.join('?' * len(given))})", *given)

    def _repeats_too_often(self, template: str, arguments: list[Value]) -> bool:
        arguments.reverse()
        for options, conversion in CONVERSION.findall(template.partition("\0")[0]):
            precision = 0
            for point, count in COUNT.findall(options):
                number = self._whole(arguments.pop() if arguments else 0) if count == "*" else _wrapped(count)
                precision = abs(number) if point else precision
            if conversion == "c" and precision > self._max_value:
                return True
            if conversion not in "%n" and arguments:
                arguments.pop()
        return False

    def _whole(self, value: Value) -> int:
        """As C takes it: 32 bits."""
        number = self._own("SELECT CAST(? AS INTEGER)", value)
        return (int(number or 0) + 2**31) % 2**32 - 2**31

    def _unhex(self, *given: Value) -> Value:
        self.refusal = UNHEX_ONE_ARGUMENT
        raise ValueError(UNHEX_ONE_ARGUMENT)

    def _text(self, value: int | float | str | bytes) -> str:
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="replace")
        return value if isinstance(value, str) else str(self._own("SELECT CAST(? AS TEXT)", value))

    def _own(self, query: str, *given: Value) -> Value:
        if self._plain is None:
            self._plain = sqlite3.connect(":memory:", isolation_level=None)
            self._plain.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._max_value)
        (value,) = self._plain.execute(query, given).fetchone()
        return None if value is None else _checked(value)


def _said(value: Value) -> str:
    """As SQLite reads it, which takes bytes for letters and ends at a zero."""
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
    return text.partition("\0")[0].strip().lower()


def _wrapped(digits: str) -> int:
    """The number that SQLite makes of digits in a format: the last 31 bits."""
    return reduce(lambda number, digit: (10 * number + int(digit)) & 0x7FFFFFFF, digits, 0)


def _checked(value: object) -> int | float | str:
    if not isinstance(value, int | float | str):
        raise TypeError(f"a function of SQLite gave {type(value).__name__}")
    return value
