"""A question with the query that answers it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Rows that a database must have, so that those who read the question carelessly find something else."""

    table: str
    column: str
    values: tuple[int, ...]
    """Each is given to another row."""
    ref: str = ""
    """If given, then instead to all rows that refer to one and the same by this column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    query: str
    ordered: bool = False
    """The question asks for an order of rows."""
    planted: Planted | None = None
    alike: tuple[str, ...] = ()
    """Columns that are easily taken for one another: to take the wrong one must be wrong on one of two databases."""
