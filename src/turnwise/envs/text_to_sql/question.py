"""A question with the query that answers it."""

from dataclasses import dataclass

from turnwise.envs.text_to_sql.near import near_misses


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Rows that a database must have, so that those who read the question carelessly find something else."""

    table: str
    column: str
    value: int
    rows: int = 1
    """So many get the value."""
    ref: str = ""
    """If given, then instead all rows get it that refer to one and the same by this column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    query: str
    ordered: bool = False
    """The question asks for an order of rows."""
    planted: Planted | None = None

    @property
    def near_misses(self) -> tuple[str, ...]:
        """Queries that are wrong: on one of two databases at least they must give something else."""
        return near_misses(self.query)
