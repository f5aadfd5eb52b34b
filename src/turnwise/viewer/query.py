"""Trajectories of a table that fit, in an order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.core.errors import UserError
from turnwise.core.suggestions import suggest
from turnwise.viewer.columns import NAMED, Column, Table

Positions = NDArray[np.intp]
SORTS = ("number", "step", "group", "member", "model", "environment", "seed", "status", "reward", "tokens", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a row must be; None: anything."""

    step: int | None = None
    group: int | None = None
    seed: int | None = None
    environment: str | None = None
    status: str | None = None
    model: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None


def select(table: Table, wanted: Wanted, sort: str = "number") -> Positions:
    """Positions of the rows that fit. Rewards that are no number fit no range, and stand last in both orders."""
    fits = np.ones(table.rows, bool)
    for name in ("step", "group", "seed"):
        value = getattr(wanted, name)
        if value is not None:
            fits &= table.columns[name] == value
    for name in NAMED:
        text = getattr(wanted, name)
        if text is not None:
            names = table.names[name]
            fits &= table.columns[name] == (names.index(text) if text in names else -2)
    if wanted.reward_min is not None:
        fits &= table.columns["reward"] >= wanted.reward_min
    if wanted.reward_max is not None:
        fits &= table.columns["reward"] <= wanted.reward_max
    return in_order(table, np.flatnonzero(fits), sort)


def in_order(table: Table, positions: Positions, sort: str) -> Positions:
    """By a column, `-` before it for the largest first; equal ones by their number."""
    name = sort.removeprefix("-")
    if name not in SORTS:
        raise UserError(f"cannot sort by {name!r}:{suggest(name, SORTS)}")
    values = order_of(table, name)[positions]
    by_number = table.columns["number"][positions]
    return positions[np.lexsort((by_number, -values if sort.startswith("-") else values))]


def order_of(table: Table, name: str) -> Column:
    """Numbers that stand in the order of a column's values; names stand in that of the alphabet."""
    column = table.columns[name]
    if name not in NAMED:
        return column
    names = table.names[name]
    rank = {text: place for place, text in enumerate(sorted(names))}
    ranks = np.array([*(rank[text] for text in names), -1], np.int64)  # -1, the missing name, reads the last one
    return ranks[column]
