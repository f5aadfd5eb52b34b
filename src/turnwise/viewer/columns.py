"""Rows by column: a hundred thousand of them in a few megabytes, and filters that take milliseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnwise.viewer.lines import read_number

Column = NDArray[Any]
MISSING = -1
"""In a column of whole numbers: the row does not say."""
WHOLE = ("number", "step", "group", "member", "seed", "tokens", "turns", "offset", "length")
NAMED = ("model", "environment", "status")
"""Columns that hold the place of a name in a list of names."""
MAX_NAME = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A run's trajectories as they stood at one moment: what is read later does not change it."""

    columns: Mapping[str, Column]
    names: Mapping[str, Sequence[str]]
    """Of `NAMED` columns."""
    broken: int

    @property
    def rows(self) -> int:
        return len(self.columns["number"])

    def row(self, position: int, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """One row as its line in the index, with its number, and its model in an evaluation; all columns, or some."""
        found: dict[str, Any] = {}
        for name in self.columns if columns is None else columns:
            value = self.columns[name][position].item()
            if name in NAMED:
                found[name] = self.names[name][value] if value >= 0 else None
            else:
                found[name] = None if name == "turns" and value == MISSING else value
        if found["model"] is None:
            del found["model"]
        return found

    def used(self, name: str) -> list[str]:
        """The names that occur in a column."""
        return sorted(self.names[name])

    def find(self, number: int) -> int | None:
        """The position of a row, given its number."""
        found = np.flatnonzero(self.columns["number"] == number)
        return int(found[0]) if len(found) else None


class GrowingTable:
    """Takes rows at its end; arrays double, so that a table that was given out stays as it is."""

    def __init__(self) -> None:
        self._rows = 0
        self._arrays: dict[str, Column] = {name: np.empty(0, np.int64) for name in (*NAMED, *WHOLE)}
        self._arrays["reward"] = np.empty(0, np.float64)
        self._codes: dict[str, dict[str, int]] = {name: {} for name in NAMED}
        self.broken = 0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes rows of an index, each with its number; one that is none is counted in `broken`.

        Many are taken at once, which is fast; where one among them is broken, halves are tried until it stands alone.
        """
        if not rows:
            return
        try:
            self._extend(_whole_columns(rows), _rewards(rows), _names(rows))
        except (KeyError, TypeError, ValueError, OverflowError):
            if len(rows) == 1:
                self.broken += 1
                return
            self.add(rows[: len(rows) // 2])
            self.add(rows[len(rows) // 2 :])

    def _extend(self, whole: Mapping[str, Column], rewards: Column, names: Mapping[str, Sequence[str | None]]) -> None:
        given = {**whole, "reward": rewards}
        for column, texts in names.items():
            codes = self._codes[column]
            places = [MISSING if text is None else codes.setdefault(text, len(codes)) for text in texts]
            given[column] = np.array(places, np.int64)
        end = self._rows + len(rewards)
        for name, array in self._arrays.items():
            if end > len(array):
                grown = np.empty(max(end, 2 * len(array)), array.dtype)
                grown[: self._rows] = array[: self._rows]
                self._arrays[name] = array = grown
            array[self._rows : end] = given[name]
        self._rows = end

    def table(self) -> Table:
        return Table(
            columns={name: array[: self._rows] for name, array in self._arrays.items()},
            names={name: list(codes) for name, codes in self._codes.items()},
            broken=self.broken,
        )


def _whole_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    columns = {}
    for name in WHOLE:
        values = [row.get(name, MISSING) for row in rows] if name == "turns" else [row[name] for row in rows]
        if set(map(type, values)) != {int}:
            raise TypeError(f"{name} is no whole number")
        columns[name] = np.array(values, np.int64)
    return columns


def _rewards(rows: Sequence[Mapping[str, Any]]) -> Column:
    values = [row["reward"] for row in rows]
    if set(map(type, values)) != {float}:
        values = [read_number(value) for value in values]
    return np.array(values, np.float64)


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    names: dict[str, list[str | None]] = {name: [row[name] for row in rows] for name in ("environment", "status")}
    if any(not isinstance(name, str) or len(name) > MAX_NAME for column in names.values() for name in column):
        raise TypeError("a name is no text, or too long")
    return {**names, "model": [row.get("model") for row in rows]}
