"""Database schemas: tables and columns, with what is needed to fill them and to phrase questions about them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

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


_PEOPLE = "Ada Ben Cleo Dan Ella Finn Gina Hugo Ida Jan Kira Lars Mia Nils Olga Paul Rosa Sven Tina Udo Vera Will Yara"
PEOPLE = tuple(_PEOPLE.split())
COLOURS = ("red", "blue", "green", "black", "white", "pink", "grey", "gold", "brown", "lime", "navy", "teal")
CITIES = ("Bergen", "Cairo", "Lima", "Oslo", "Quito", "Turin")
COUNTRIES = ("Brazil", "Egypt", "India", "Japan", "Kenya", "Norway")
OBJECTS = tuple(
    f"{kind} {noun}"
    for kind in ("Big", "Blue", "Old", "Plain")
    for noun in ("Chair", "Cup", "Lamp", "Pen", "Vase", "Bag")
)
TITLES = tuple(
    f"{kind} {noun}"
    for kind in ("Cold", "Lost", "Quiet", "Red")
    for noun in ("Harbour", "Moon", "River", "Song", "Tower", "Wind")
)


def _key() -> ColumnSpec:
    return ColumnSpec(name="id", kind="key")


def _label(values: tuple[str, ...], name: str = "name") -> ColumnSpec:
    return ColumnSpec(name=name, kind="label", values=values)


def _group(name: str, *values: str) -> ColumnSpec:
    return ColumnSpec(name=name, kind="group", values=values)


def _number(name: str, low: int, high: int, nulls: float = 0.0) -> ColumnSpec:
    return ColumnSpec(name=name, kind="number", low=low, high=high, nulls=nulls)


def _money(name: str, low: int, high: int) -> ColumnSpec:
    return ColumnSpec(name=name, kind="money", low=low, high=high)


def _ref(noun: str) -> ColumnSpec:
    return ColumnSpec(name=f"{noun}_id", kind="ref")


def _day(name: str, nulls: float = 0.0) -> ColumnSpec:
    return ColumnSpec(name=name, kind="day", nulls=nulls)


def _table(name: str, noun: str, *columns: ColumnSpec, rows: tuple[int, int] = (8, 14)) -> TableSpec:
    return TableSpec(name=name, noun=noun, columns=(_key(), *columns), rows=rows)


SHOP = Schema(
    name="shop",
    tables=(
        _table("customers", "customer", _label(PEOPLE), _group("city", *CITIES), _number("age", 18, 80, nulls=0.2)),
        _table(
            "products",
            "product",
            _label(OBJECTS),
            _group("category", "garden", "home", "office", "toys"),
            _money("price", 2, 90),
            _number("stock", 0, 60),
        ),
        _table(
            "orders",
            "order",
            _ref("customer"),
            _ref("product"),
            _number("quantity", 1, 9),
            _day("shipped", nulls=0.2),
            rows=(20, 32),
        ),
    ),
)
SCHOOL = Schema(
    name="school",
    tables=(
        _table(
            "teachers",
            "teacher",
            _label(PEOPLE),
            _group("subject", "art", "maths", "music", "physics"),
            _number("salary", 30, 90),
        ),
        _table(
            "courses",
            "course",
            _label(TITLES, "title"),
            _ref("teacher"),
            _number("credits", 1, 12),
            _group("term", "autumn", "spring"),
        ),
        _table("students", "student", _label(PEOPLE), _group("city", *CITIES), _number("year", 1, 5)),
        _table(
            "enrolments",
            "enrolment",
            _ref("student"),
            _ref("course"),
            _number("hours", 5, 80),
            _number("score", 1, 100, nulls=0.25),
            rows=(20, 32),
        ),
    ),
)
LIBRARY = Schema(
    name="library",
    tables=(
        _table("authors", "author", _label(PEOPLE), _group("country", *COUNTRIES), _number("born", 1900, 1999)),
        _table(
            "books",
            "book",
            _label(TITLES, "title"),
            _ref("author"),
            _group("genre", "crime", "history", "poetry", "science"),
            _number("pages", 60, 900),
            rows=(12, 20),
        ),
        _table(
            "loans",
            "loan",
            _ref("book"),
            _group("branch", "east", "north", "west"),
            _number("days", 1, 60),
            _day("returned", nulls=0.3),
            rows=(18, 30),
        ),
    ),
)
FLIGHTS = Schema(
    name="flights",
    tables=(
        _table(
            "airlines",
            "airline",
            _label(tuple(f"Air {name}" for name in PEOPLE)),
            _group("country", *COUNTRIES),
            _number("planes", 2, 80),
        ),
        _table(
            "airports",
            "airport",
            _label(tuple(f"Port {name}" for name in PEOPLE)),
            _group("country", *COUNTRIES),
            _number("gates", 2, 60),
        ),
        _table(
            "flights",
            "flight",
            _ref("airline"),
            _ref("airport"),
            _number("distance", 100, 9000),
            _money("fare", 40, 900),
            _number("delay", 1, 90, nulls=0.4),
            rows=(20, 32),
        ),
    ),
)
HOSPITAL = Schema(
    name="hospital",
    tables=(
        _table(
            "doctors", "doctor", _label(PEOPLE), _group("field", "eyes", "heart", "skin"), _number("salary", 60, 200)
        ),
        _table("patients", "patient", _label(PEOPLE), _group("city", *CITIES), _number("age", 1, 95)),
        _table(
            "visits",
            "visit",
            _ref("doctor"),
            _ref("patient"),
            _money("cost", 20, 400),
            _number("minutes", 5, 60),
            _day("follow_up", nulls=0.5),
            rows=(20, 32),
        ),
    ),
)
MUSIC = Schema(
    name="music",
    tables=(
        _table(
            "artists",
            "artist",
            _label(PEOPLE),
            _group("country", *COUNTRIES),
            _number("founded", 1960, 2020, nulls=0.2),
        ),
        _table(
            "albums",
            "album",
            _label(TITLES, "title"),
            _ref("artist"),
            _money("price", 5, 40),
            _group("style", "folk", "jazz", "rock"),
            rows=(12, 20),
        ),
        _table("tracks", "track", _ref("album"), _number("seconds", 60, 600), _number("plays", 0, 5000), rows=(20, 32)),
    ),
)
SCHEMAS: dict[str, Schema] = {schema.name: schema for schema in (SHOP, SCHOOL, LIBRARY, FLIGHTS, HOSPITAL, MUSIC)}
TINY = Schema(
    name="tiny",
    tables=(
        TableSpec(
            name="t",
            noun="row",
            columns=(
                _label(COLOURS, "c"),
                _number("a", 1, 9),
                _number("b", 1, 9),
                _number("d", 1, 9),
            ),
            rows=(8, 8),
        ),
    ),
)
"""One table with one-letter columns, for a model of a million parameters."""
