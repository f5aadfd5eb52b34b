"""Databases of a question: random rows, distractor queries, and a pair of databases that tells them apart.

The agent sees one database; a hidden second one checks its query, so that a query which is right by chance, or which
misreads the question slightly, does not pass.
"""

import random
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import date, timedelta
from functools import cache, partial
from itertools import permutations
from typing import NamedTuple

from turnwise.envs.text_to_sql.questions import PlantedRows, SqlQuestion
from turnwise.envs.text_to_sql.schemas import ColumnSpec, Schema
from turnwise.rewards.sql_results import equal_results
from turnwise.tools.sql.query import QueryResult, SqlValue, run_beside_queries

DAYS = tuple((date(2024, 1, 1) + timedelta(days=number)).isoformat() for number in range(366))


def make_database(schema: Schema, rng: random.Random) -> sqlite3.Connection:
    """Return an in-memory database with random rows; the caller closes it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    sizes: dict[str, int] = {}
    connection.execute("BEGIN")
    for table in schema.tables:
        sizes[table.noun] = rng.randint(*table.rows)
        connection.execute(table.create_statement)
        columns = [_draw_values(column, sizes[table.noun], sizes, rng) for column in table.columns]
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", zip(*columns, strict=True))
    connection.execute("COMMIT")
    return connection


def plant_rows(connection: sqlite3.Connection, planted: PlantedRows, rng: random.Random) -> None:
    """Write the planted values into random rows."""
    column = planted.ref or "rowid"
    keys = [key for (key,) in connection.execute(f"SELECT DISTINCT {column} FROM {planted.table} ORDER BY 1")]
    targets = rng.sample(keys, len(planted.values))
    update = f"UPDATE {planted.table} SET {planted.column} = ? WHERE {column} = ?"
    connection.executemany(update, zip(planted.values, targets, strict=True))


def _draw_values(column: ColumnSpec, count: int, sizes: dict[str, int], rng: random.Random) -> Sequence[SqlValue]:
    """Draw `count` values of a column. `sizes`: noun -> rows of the tables so far."""
    if column.kind == "key":
        return range(1, count + 1)
    if column.kind == "label":
        return rng.sample(column.values, count)
    drawn = rng.choices(_value_range(column, sizes), k=count)
    return [None if rng.random() < column.nulls else value for value in drawn] if column.nulls else drawn


def _value_range(column: ColumnSpec, sizes: dict[str, int]) -> Sequence[SqlValue]:
    match column.kind:
        case "group":
            return column.values
        case "day":
            return DAYS
        case "ref":
            return range(1, sizes[column.name.removesuffix("_id")] + 1)
        case "money":
            return _amounts(column.low, column.high)
    return range(column.low, column.high + 1)


@cache
def _amounts(low: int, high: int) -> tuple[float, ...]:
    """All amounts from `low` to `high` in steps of 0.01."""
    return tuple(cents / 100 for cents in range(low * 100, high * 100 + 1))


COMPARED_NUMBER = r"(?<=[<>=])\d+|(?<=[<>=] )\d+"


def _shift(by: int) -> Callable[[re.Match[str]], str]:
    return lambda number: str(int(number[0]) + by)


DISTRACTOR_EDITS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r" WHERE .*?(?= GROUP BY| ORDER BY|$)", ""),
    (r" HAVING .*?(?= ORDER BY|$)", ""),
    (r"([<>])( ?)(?=\d)", r"\1=\2"),
    (r"([<>])=( ?)(?=\d)", r"\1\2"),
    (COMPARED_NUMBER, _shift(1)),
    (COMPARED_NUMBER, _shift(-1)),
    (r"\bDISTINCT ", ""),
    (r", (\w+\.)?id( DESC)?(?= LIMIT)", ""),
    (r"\bid DESC(?= LIMIT)", "id"),
    (r"\bid(?= LIMIT)", "id DESC"),
    (r" DESC(?=,)", " ASC"),
    (r" ASC(?=,)", " DESC"),
    (r" LIMIT \d+", ""),
    (r"\b(AVG|MIN|SUM)\(", "MAX("),
    (r"\b(AVG|MAX|SUM)\(", "MIN("),
)
"""(pattern, replacement) pairs that each make a typical mistake in the reference query: overlook or confuse a word."""


def make_distractors(question: SqlQuestion) -> tuple[str, ...]:
    """Return queries with one mistake each. Every one must give a wrong result on at least one of the two databases."""
    query = question.query
    edits = [re.sub(pattern, replacement, query) for pattern, replacement in DISTRACTOR_EDITS]
    edits += [re.sub(rf"\b{column}\b", other, query) for column, other in permutations(question.similar_columns, 2)]
    return tuple(edited for edited in dict.fromkeys(edits) if edited != query)


DATABASE_ATTEMPTS = 20
"""Pairs of databases that are drawn per question."""


class CheckDatabase(NamedTuple):
    image: bytes
    expected: QueryResult
    """Result of the reference query."""


def make_check_databases(
    question: SqlQuestion, schema: Schema, rng: random.Random
) -> tuple[CheckDatabase, CheckDatabase] | None:
    """Draw (shown, hidden) databases whose results differ and which no distractor passes; None if none were found."""
    distractors = make_distractors(question)
    for _ in range(DATABASE_ATTEMPTS):
        shown, shown_results = _draw_database(question, schema, distractors, rng)
        hidden, hidden_results = _draw_database(question, schema, distractors, rng)
        if _are_informative(shown.expected, hidden.expected, question.ordered) and not any(
            equal_results(on_shown, shown.expected, question.ordered)
            and equal_results(on_hidden, hidden.expected, question.ordered)
            for on_shown, on_hidden in zip(shown_results, hidden_results, strict=True)
        ):
            return shown, hidden
    return None


def _draw_database(
    question: SqlQuestion, schema: Schema, distractors: Sequence[str], rng: random.Random
) -> tuple[CheckDatabase, Sequence[QueryResult]]:
    """Build from a single seed, so that a retry builds the same database."""
    return run_beside_queries(partial(_build_database, question, schema, distractors, rng.getrandbits(64)))


def _build_database(
    question: SqlQuestion, schema: Schema, distractors: Sequence[str], seed: int
) -> tuple[CheckDatabase, Sequence[QueryResult]]:
    """Build a database and run the distractors on it."""
    rng = random.Random(seed)
    with closing(make_database(schema, rng)) as connection:
        if question.planted is not None:
            plant_rows(connection, question.planted, rng)
        results = [_run(connection, query) for query in distractors]
        return CheckDatabase(_serialize(connection), _run(connection, question.query)), results


def _run(connection: sqlite3.Connection, query: str) -> QueryResult:
    cursor = connection.execute(query)
    return QueryResult(columns=tuple(column[0] for column in cursor.description), rows=tuple(cursor.fetchall()))


def _serialize(connection: sqlite3.Connection) -> bytes:
    try:
        return connection.serialize()
    except sqlite3.OperationalError as error:  # undocumented, but the only cause is a lack of memory
        raise MemoryError from error


def _are_informative(shown: QueryResult, hidden: QueryResult, ordered: bool) -> bool:
    """Return whether both results have a value, and they differ."""
    has_values = all(any(cell is not None for row in rows.rows for cell in row) for rows in (shown, hidden))
    return has_values and not equal_results(shown, hidden, ordered)
