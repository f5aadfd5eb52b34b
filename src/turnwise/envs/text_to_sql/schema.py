"""What a database is made of: tables and columns, with what is needed to fill them and to speak of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["key", "label", "group", "number", "money", "day", "ref"]
TYPES: dict[Kind, str] = {"label": "TEXT", "group": "TEXT", "money": "REAL", "day": "TEXT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    kind: Kind
    values: tuple[str, ...] = ()
    """Of a label, which no two rows share, or of a group, which many do."""
    low: int = 0
    high: int = 0
    """Of a number."""
    gaps: float = 0.0
    """The share of rows that have no value."""

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class Table:
    name: str
    noun: str
    """One row of it; the table's name is the plural."""
    columns: tuple[Column, ...]
    rows: tuple[int, int]
    """At least and at most."""

    @cached_property
    def label(self) -> Column:
        """What a row is called by; of those without a name, their key."""
        return next((column for column in self.columns if column.kind == "label"), self.columns[0])

    @cached_property
    def groups(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind == "group")

    @cached_property
    def numbers(self) -> tuple[Column, ...]:
        """Those that every row has."""
        return tuple(column for column in self.columns if column.kind in ("number", "money") and not column.gaps)

    @cached_property
    def gapped(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.gaps)

    @cached_property
    def refs(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind == "ref")

    @cached_property
    def create(self) -> str:
        """
        CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, author_id INTEGER)
        """
        return f"CREATE TABLE {self.name} ({', '.join(map(_declared, self.columns))})"


@dataclass(frozen=True, kw_only=True)
class Schema:
    name: str
    tables: tuple[Table, ...]
    """Each after those that it refers to."""

    def target(self, ref: Column) -> Table:
        """The table that `author_id` refers to."""
        return next(table for table in self.tables if table.noun == ref.name.removesuffix("_id"))

    def create(self) -> str:
        return "\n".join(f"{table.create};" for table in self.tables)


def _declared(column: Column) -> str:
    if column.kind == "key":
        return f"{column.name} INTEGER PRIMARY KEY"
    if column.kind == "ref":
        return f"{column.name} INTEGER"
    return f"{column.name} {TYPES.get(column.kind, 'INTEGER')}"
