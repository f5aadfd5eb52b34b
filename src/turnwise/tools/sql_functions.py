"""Functions of SQLite that we give a query in a form of our own.

Those of dates know neither the present nor the place of the machine, since equal queries give equal results. `trim`
and `unhex` with a set of letters take time by the product of both lengths, and `printf` with %.2147483647c counts to
that number, whatever the limit of a text: inside a single step that nothing interrupts.
"""

import re
import sqlite3
from collections.abc import Callable
from functools import partial, reduce

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
NEITHER = "The present and the time zone differ between runs: write the date out."
ONE_TEXT = "unhex takes one value here, without letters to pass over."


class Functions:
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
            self.refusal = NEITHER  # without a time, or with nothing but "subsec", they mean the present
            raise ValueError(NEITHER)
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
        self.refusal = ONE_TEXT
        raise ValueError(ONE_TEXT)

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
