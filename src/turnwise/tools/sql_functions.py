"""Functions of SQLite that we give a query in a form of our own.

Those of dates know neither the present nor the place of the machine, since equal queries give equal results. `trim`
with a set of letters takes time by the product of both lengths, inside a single step that nothing interrupts.
"""

import re
import sqlite3
from collections.abc import Callable
from functools import partial

Value = None | int | float | str | bytes
DATES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime")
TRIMS: dict[str, Callable[[str, str], str]] = {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}
NAMED = re.compile("|".join((*DATES, *TRIMS)), re.IGNORECASE)
"""What calls one of them holds its name, however it is written."""
CALLED = re.compile(rf"\b(?:{NAMED.pattern})\W*\(", re.IGNORECASE)
HERE_AND_NOW = frozenset({"now", "localtime", "utc"})
NEITHER = "The present and the time zone differ between runs: write the date out."


class Functions:
    """One query's, always in its own thread."""

    def __init__(self) -> None:
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

    def _text(self, value: int | float | str | bytes) -> str:
        if isinstance(value, bytes):
            return value.decode("utf-8", errors="replace")
        return value if isinstance(value, str) else str(self._own("SELECT CAST(? AS TEXT)", value))

    def _own(self, query: str, *given: Value) -> Value:
        if self._plain is None:
            self._plain = sqlite3.connect(":memory:", isolation_level=None)
        (value,) = self._plain.execute(query, given).fetchone()
        return None if value is None else _checked(value)


def _said(value: Value) -> str:
    """As SQLite reads it, which takes bytes for letters and ends at a zero."""
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
    return text.partition("\0")[0].strip().lower()


def _checked(value: object) -> int | float | str:
    if not isinstance(value, int | float | str):
        raise TypeError(f"a function of SQLite gave {type(value).__name__}")
    return value
