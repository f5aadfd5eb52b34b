"""A run's metrics by column, read as the file grows."""

import math
import secrets
from array import array
from collections.abc import Collection, Mapping
from typing import Any

from turnwise.viewer.lines import read_number
from turnwise.viewer.root import is_unicode
from turnwise.viewer.rows import RowReader

MAX_COLUMNS = 1000
"""Further metrics are left out: a file that names a new one on each line must not fill the memory."""
MAX_TEXT = 200


class Metrics(RowReader):
    """One number a row and metric, NaN where a row lacks it; short texts, such as an evaluation's name, beside them."""

    def _forget(self) -> None:
        self._rows = self._broken = 0
        self._numbers: dict[str, array[float]] = {}
        self._texts: dict[str, dict[int, str]] = {}
        self._generation = secrets.token_hex(4)
        """Another one whenever rows that were given out are no longer those of the file."""

    def _add(self, row: Mapping[str, Any] | None) -> None:
        if row is None or type(row.get("step")) is not int:
            self._broken += 1
            return
        for name, value in row.items():
            if type(value) is float or type(value) is int:
                self._put(name, value)
            elif isinstance(value, str | bool):
                self._put_other(name, value)
        self._rows += 1

    def _put(self, name: str, value: float) -> None:
        column = self._numbers.get(name)
        if column is None:
            if not self._new(name):
                return
            column = self._numbers[name] = array("d")
        if len(column) < self._rows:
            column.extend([math.nan] * (self._rows - len(column)))
        try:
            column.append(value)
        except OverflowError:  # a whole number beyond all floats
            column.append(math.nan)

    def _put_other(self, name: str, value: str | bool) -> None:
        try:
            self._put(name, read_number(value))
        except ValueError:
            if name in self._texts or self._new(name):
                shown = str(value)[:MAX_TEXT].encode("utf-8", "replace").decode()
                self._texts.setdefault(name, {})[self._rows] = shown

    def _new(self, name: str) -> bool:
        return len(self._numbers) + len(self._texts) < MAX_COLUMNS and len(name) <= MAX_TEXT and is_unicode(name)

    def keys(self) -> list[str]:
        return sorted({*self._numbers, *self._texts})

    def since(self, after: int, keys: Collection[str] | None, generation: str | None) -> dict[str, Any]:
        """Rows from `after` on: what a page that holds that many lacks. All, where what it holds no longer holds."""
        reset = after > self._rows or (generation is not None and generation != self._generation)
        start = 0 if reset else max(after, 0)
        chosen = [name for name in self.keys() if keys is None or name == "step" or name in keys]
        return {
            "rows": self._rows,
            "columns": {name: self._column(name, start) for name in chosen},
            "next": self._rows,
            "generation": self._generation,
            "broken": self._broken + self._follower.too_long,
            **({"reset": True} if reset else {}),
        }

    def _column(self, name: str, start: int) -> list[Any]:
        """NaN for what is lacking; the answer writes it as null."""
        held = self._numbers.get(name, array("d"))
        values: list[Any] = held[start:].tolist()
        values += [math.nan] * (self._rows - start - len(values))
        for position, text in self._texts.get(name, {}).items():
            if position >= start:
                values[position - start] = text
        return values
