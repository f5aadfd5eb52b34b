"""Tables of trajectories by column: 100,000 rows take a few megabytes, and filters take milliseconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field

from turnwise.core.errors import UserError
from turnwise.text.suggestions import suggest
from turnwise.viewer.json_io import read_number

Column = NDArray[Any]
Positions = NDArray[np.intp]
TaskKey = tuple[str, int]
"""(environment, seed)."""

INTEGER_COLUMNS = ("number", "step", "group", "member", "seed", "tokens", "turns", "offset", "length")
NAME_COLUMNS = ("model", "evaluation", "environment", "status")
"""Columns that hold indices into a list of names."""
OPTIONAL_COLUMNS = ("model", "evaluation")
"""Columns that only some rows have: those of evaluations of several models, and of evaluations during training."""
MISSING = -1
"""Value in integer and name columns where the row has none."""
UNKNOWN_NAME = -2
"""Index of a name that no row has."""
MAX_NAME = 1000
SORT_KEYS = ("number", "step", "group", "member", "model", "environment", "seed", "status", "reward", "tokens", "turns")
MAX_EPISODES_PER_TASK = 64
"""Episodes of a task that a comparison shows per run."""
COMPARED_COLUMNS = ("number", "group", "model", "evaluation", "reward", "status", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryTable:
    """A run's trajectories at one moment; rows read later do not change it."""

    columns: Mapping[str, Column]
    names: Mapping[str, Sequence[str]]
    """The names that each of `NAME_COLUMNS` refers to."""
    broken: int
    """Rows that could not be read."""

    @property
    def rows(self) -> int:
        return len(self.columns["number"])

    def row(self, position: int, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row as in the index, plus its number and, in an evaluation's folder, its model."""
        row: dict[str, Any] = {}
        for name in self.columns if columns is None else columns:
            value = self.columns[name][position].item()
            if name in NAME_COLUMNS:
                row[name] = self.names[name][value] if value >= 0 else None
            else:
                row[name] = None if name == "turns" and value == MISSING else value
        return {name: value for name, value in row.items() if value is not None or name not in OPTIONAL_COLUMNS}

    def name_index(self, column: str, text: str) -> int:
        names = self.names[column]
        return names.index(text) if text in names else UNKNOWN_NAME

    def sorted_names(self, column: str) -> list[str]:
        return sorted(self.names[column])

    def find(self, number: int) -> int | None:
        """Return the position of the row with this number."""
        positions = np.flatnonzero(self.columns["number"] == number)
        return int(positions[0]) if len(positions) else None


class TableBuilder:
    """Appends rows to arrays that double in size; tables returned earlier keep their contents."""

    def __init__(self) -> None:
        self._rows = 0
        self._arrays: dict[str, Column] = {name: np.empty(0, np.int64) for name in (*NAME_COLUMNS, *INTEGER_COLUMNS)}
        self._arrays["reward"] = np.empty(0, np.float64)
        self._name_indices: dict[str, dict[str, int]] = {name: {} for name in NAME_COLUMNS}
        self.broken = 0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows of an index, each with its number; malformed rows are counted in `broken`.

        All rows are converted at once, which is fast. If that fails, the halves are tried, down to the malformed row.
        """
        if not rows:
            return
        try:
            self._extend(_integer_columns(rows), _rewards(rows), _names(rows))
        except (KeyError, TypeError, ValueError, OverflowError):
            if len(rows) == 1:
                self.broken += 1
                return
            self.add(rows[: len(rows) // 2])
            self.add(rows[len(rows) // 2 :])

    def _extend(
        self, integers: Mapping[str, Column], rewards: Column, names: Mapping[str, Sequence[str | None]]
    ) -> None:
        new = {**integers, "reward": rewards}
        for column, texts in names.items():
            known = self._name_indices[column]
            indices = [MISSING if text is None else known.setdefault(text, len(known)) for text in texts]
            new[column] = np.array(indices, np.int64)
        end = self._rows + len(rewards)
        for name, array in self._arrays.items():
            if end > len(array):
                grown = np.empty(max(end, 2 * len(array)), array.dtype)
                grown[: self._rows] = array[: self._rows]
                self._arrays[name] = array = grown
            array[self._rows : end] = new[name]
        self._rows = end

    def table(self) -> TrajectoryTable:
        return TrajectoryTable(
            columns={name: array[: self._rows] for name, array in self._arrays.items()},
            names={name: list(indices) for name, indices in self._name_indices.items()},
            broken=self.broken,
        )


def _integer_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    columns = {}
    for name in INTEGER_COLUMNS:
        values = [row.get(name, MISSING) for row in rows] if name == "turns" else [row[name] for row in rows]
        if set(map(type, values)) != {int}:
            raise TypeError(f"{name} is not an integer")
        columns[name] = np.array(values, np.int64)
    return columns


def _rewards(rows: Sequence[Mapping[str, Any]]) -> Column:
    values = [row["reward"] for row in rows]
    if set(map(type, values)) != {float}:
        values = [read_number(value) for value in values]
    return np.array(values, np.float64)


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    required: dict[str, list[str | None]] = {name: [row[name] for row in rows] for name in ("environment", "status")}
    optional = {name: [row.get(name) for row in rows] for name in OPTIONAL_COLUMNS}
    given = [text for texts in optional.values() for text in texts if text is not None]
    for text in (*given, *(text for texts in required.values() for text in texts)):
        if not isinstance(text, str) or len(text) > MAX_NAME:
            raise TypeError("a name is not text, or too long")
    return required | optional


Text = Annotated[str, Field(max_length=10_000)]
Count = Annotated[int, Field(ge=0, le=2**53)]
NonEmpty = Annotated[Text | None, AfterValidator(lambda text: text or None)]
Integer = Annotated[int | None, Field(ge=-(2**63), le=2**63 - 1)]
Bound = Annotated[float | None, Field(allow_inf_nan=False)]


class TrajectoryFilter(BaseModel):
    """Conditions on a row, as a request has them; None allows everything, except for `evaluation`."""

    evaluation: NonEmpty = None
    """Name of an evaluation during training; None for all other rows."""
    step: Integer = None
    group: Integer = None
    seed: Integer = None
    environment: NonEmpty = None
    status: NonEmpty = None
    model: NonEmpty = None
    reward_min: Bound = None
    reward_max: Bound = None


def select_rows(table: TrajectoryTable, conditions: TrajectoryFilter, sort: str = "number") -> Positions:
    """Return the sorted positions of the rows that match. A NaN reward is in no range and sorts last either way."""
    matches = rows_of_evaluation(table, conditions.evaluation)
    for name in ("step", "group", "seed"):
        value = getattr(conditions, name)
        if value is not None:
            matches &= table.columns[name] == value
    for name in ("model", "environment", "status"):
        text = getattr(conditions, name)
        if text is not None:
            matches &= table.columns[name] == table.name_index(name, text)
    if conditions.reward_min is not None:
        matches &= table.columns["reward"] >= conditions.reward_min
    if conditions.reward_max is not None:
        matches &= table.columns["reward"] <= conditions.reward_max
    return sort_rows(table, np.flatnonzero(matches), sort)


def rows_of_evaluation(table: TrajectoryTable, evaluation: str | None) -> NDArray[np.bool_]:
    """Return which rows belong to an evaluation during training of this name, or, for None, to no such evaluation."""
    wanted = MISSING if evaluation is None else table.name_index("evaluation", evaluation)
    return np.asarray(table.columns["evaluation"] == wanted)


def sort_rows(table: TrajectoryTable, positions: Positions, sort: str) -> Positions:
    """Sort by a column, descending with a `-` before its name; equal values by number."""
    name = sort.removeprefix("-")
    if name not in SORT_KEYS:
        raise UserError(f"Cannot sort by {name!r}:{suggest(name, SORT_KEYS)}")
    values = _sort_values(table, name)[positions]
    numbers = table.columns["number"][positions]
    return positions[np.lexsort((numbers, -values if sort.startswith("-") else values))]


def _sort_values(table: TrajectoryTable, name: str) -> Column:
    """Return numbers to sort a column by; names are replaced by their rank in the alphabet."""
    column = table.columns[name]
    if name not in NAME_COLUMNS:
        return column
    names = table.names[name]
    rank = {text: index for index, text in enumerate(sorted(names))}
    ranks = np.array([*(rank[text] for text in names), -1], np.int64)  # MISSING (-1) indexes the last entry
    return ranks[column]


def match_tasks(
    one: TrajectoryTable,
    other: TrajectoryTable,
    *,
    evaluations: tuple[str | None, str | None] = (None, None),
    offset: int,
    limit: int,
) -> dict[str, Any]:
    """Return the episodes of tasks that both tables contain: equal environment and seed, sorted by both.

    `evaluations`: the evaluation during training on each side; None for all other episodes.
    """
    rows, other_rows = (
        np.flatnonzero(rows_of_evaluation(table, name)) for table, name in zip((one, other), evaluations, strict=True)
    )
    seeds = np.intersect1d(one.columns["seed"][rows], other.columns["seed"][other_rows])
    positions, other_positions = _positions_by_task(one, rows, seeds), _positions_by_task(other, other_rows, seeds)
    shared = sorted(positions.keys() & other_positions.keys())
    tasks = [
        {
            "environment": task[0],
            "seed": task[1],
            "one": _episode_rows(one, positions[task]),
            "other": _episode_rows(other, other_positions[task]),
        }
        for task in shared[offset : offset + limit]
    ]
    return {"tasks": tasks, "total": len(shared)}


def _positions_by_task(table: TrajectoryTable, rows: Positions, shared_seeds: Column) -> dict[TaskKey, list[int]]:
    """Group row positions by task. Rows with other seeds are dropped first, in one array operation."""
    seeds, environments = table.columns["seed"], table.columns["environment"]
    kept = rows[np.isin(seeds[rows], shared_seeds)]
    by_task: dict[TaskKey, list[int]] = {}
    for position, environment, seed in zip(
        kept.tolist(), environments[kept].tolist(), seeds[kept].tolist(), strict=True
    ):
        by_task.setdefault((table.names["environment"][environment], seed), []).append(position)
    return by_task


def _episode_rows(table: TrajectoryTable, positions: Sequence[int]) -> list[dict[str, Any]]:
    return [table.row(position, COMPARED_COLUMNS) for position in positions[:MAX_EPISODES_PER_TASK]]
