"""Database schemas: tables and columns, with what is needed to fill them and to phrase questions about them.

They are declared in `schemas.toml`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from turnwise.files.package_data import load_toml

ColumnKind = Literal["key", "label", "group", "number", "money", "day", "ref"]
SQL_TYPES: dict[ColumnKind, str] = {"label": "TEXT", "group": "TEXT", "money": "REAL", "day": "TEXT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    name: str
    kind: ColumnKind
    values: tuple[str, ...] = ()
    """Possible values of a label, which is unique per row, or of a group, which rows share."""
    low: int = 0
    high: int = 0
    """Range of a number."""
    nulls: float = 0.0
    """Probability that a row has NULL here."""

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    name: str
    noun: str
    """Singular name of a row; the table's name is the plural."""
    columns: tuple[ColumnSpec, ...]
    rows: tuple[int, int]
    """Fewest and most rows."""

    @cached_property
    def label(self) -> ColumnSpec:
        """Column that identifies a row in questions: its label, else its key."""
        return next((column for column in self.columns if column.kind == "label"), self.columns[0])

    @cached_property
    def groups(self) -> tuple[ColumnSpec, ...]:
        return tuple(column for column in self.columns if column.kind == "group")

    @cached_property
    def numbers(self) -> tuple[ColumnSpec, ...]:
        """Numeric columns without NULL."""
        return tuple(column for column in self.columns if column.kind in ("number", "money") and not column.nulls)

    @cached_property
    def nullable(self) -> tuple[ColumnSpec, ...]:
        return tuple(column for column in self.columns if column.nulls)

    @cached_property
    def refs(self) -> tuple[ColumnSpec, ...]:
        return tuple(column for column in self.columns if column.kind == "ref")

    @cached_property
    def create_statement(self) -> str:
        """
        CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, author_id INTEGER)
        """
        return f"CREATE TABLE {self.name} ({', '.join(map(_declare, self.columns))})"


@dataclass(frozen=True, kw_only=True)
class Schema:
    name: str
    tables: tuple[TableSpec, ...]
    """In an order in which references point backwards."""

    def referenced_table(self, ref: ColumnSpec) -> TableSpec:
        """Return the table that a column such as `author_id` refers to."""
        return next(table for table in self.tables if table.noun == ref.name.removesuffix("_id"))

    def create_statement(self) -> str:
        return "\n".join(f"{table.create_statement};" for table in self.tables)


def _declare(column: ColumnSpec) -> str:
    if column.kind == "key":
        return f"{column.name} INTEGER PRIMARY KEY"
    if column.kind == "ref":
        return f"{column.name} INTEGER"
    return f"{column.name} {SQL_TYPES.get(column.kind, 'INTEGER')}"


def _load_schemas() -> dict[str, Schema]:
    data = load_toml("turnwise.envs.text_to_sql", "schemas.toml")

    def column(fields: dict[str, Any]) -> ColumnSpec:
        values = fields.get("values", ())
        return ColumnSpec(**fields | {"values": tuple(data["words"][values] if isinstance(values, str) else values)})

    def table(name: str, fields: dict[str, Any]) -> TableSpec:
        low, high = fields["rows"]
        return TableSpec(
            name=name, noun=fields["noun"], rows=(low, high), columns=tuple(map(column, fields["columns"]))
        )

    return {
        name: Schema(name=name, tables=tuple(table(*item) for item in tables.items()))
        for name, tables in data["schemas"].items()
    }


SCHEMAS = _load_schemas()
TINY = SCHEMAS.pop("tiny")
"""One table with one-letter columns, for a model of a million parameters."""
