"""The databases that questions are about: a handful of tables each."""

from turnwise.envs.text_to_sql.schema import Column, Schema, Table

FIRST_NAMES = (
    "Ada Ben Cleo Dan Ella Finn Gina Hugo Ida Jan Kira Lars Mia Nils Olga Paul Rosa Sven Tina Udo Vera Will Yara"
)
PEOPLE = tuple(FIRST_NAMES.split())
COLOURS = ("red", "blue", "green", "black", "white", "pink", "grey", "gold", "brown", "lime", "navy", "teal")
CITIES = ("Bergen", "Cairo", "Lima", "Oslo", "Quito", "Turin")
COUNTRIES = ("Brazil", "Egypt", "India", "Japan", "Kenya", "Norway")
OBJECTS = tuple(
    f"{kind} {thing}"
    for kind in ("Big", "Blue", "Old", "Plain")
    for thing in ("Chair", "Cup", "Lamp", "Pen", "Vase", "Bag")
)
TITLES = tuple(
    f"{kind} {thing}"
    for kind in ("Cold", "Lost", "Quiet", "Red")
    for thing in ("Harbour", "Moon", "River", "Song", "Tower", "Wind")
)


def _key() -> Column:
    return Column(name="id", kind="key")


def _label(values: tuple[str, ...], name: str = "name") -> Column:
    return Column(name=name, kind="label", values=values)


def _group(name: str, *values: str) -> Column:
    return Column(name=name, kind="group", values=values)


def _number(name: str, low: int, high: int, gaps: float = 0.0) -> Column:
    return Column(name=name, kind="number", low=low, high=high, gaps=gaps)


def _money(name: str, low: int, high: int) -> Column:
    return Column(name=name, kind="money", low=low, high=high)


def _ref(noun: str) -> Column:
    return Column(name=f"{noun}_id", kind="ref")


def _day(name: str, gaps: float = 0.0) -> Column:
    return Column(name=name, kind="day", gaps=gaps)


def _table(name: str, noun: str, *columns: Column, rows: tuple[int, int] = (8, 14)) -> Table:
    return Table(name=name, noun=noun, columns=(_key(), *columns), rows=rows)


SHOP = Schema(
    name="shop",
    tables=(
        _table("customers", "customer", _label(PEOPLE), _group("city", *CITIES), _number("age", 18, 80, gaps=0.2)),
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
            _day("shipped", gaps=0.2),
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
            _number("score", 1, 100, gaps=0.25),
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
            _day("returned", gaps=0.3),
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
            _number("delay", 1, 90, gaps=0.4),
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
            _day("follow_up", gaps=0.5),
            rows=(20, 32),
        ),
    ),
)
MUSIC = Schema(
    name="music",
    tables=(
        _table(
            "artists", "artist", _label(PEOPLE), _group("country", *COUNTRIES), _number("founded", 1960, 2020, gaps=0.2)
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
        Table(
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
"""One table and very short words, for a model of a million parameters."""
