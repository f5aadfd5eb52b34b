"""Fills a schema with rows from a random stream."""

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
    """In memory; it is the caller's to close."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    sizes: dict[str, int] = {}
    connection.execute("BEGIN")
    for table in schema.tables:
        sizes[table.noun] = rng.randint(*table.rows)
        connection.execute(table.create)
        columns = [_filled(column, sizes[table.noun], sizes, rng) for column in table.columns]
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", zip(*columns, strict=True))
    connection.execute("COMMIT")
    return connection


def plant_rows(connection: sqlite3.Connection, planted: PlantedRows, rng: random.Random) -> None:
    """Which rows get the values is drawn."""
    column = planted.ref or "rowid"
    there = [found for (found,) in connection.execute(f"SELECT DISTINCT {column} FROM {planted.table} ORDER BY 1")]
    chosen = rng.sample(there, len(planted.values))
    change = f"UPDATE {planted.table} SET {planted.column} = ? WHERE {column} = ?"
    connection.executemany(change, zip(planted.values, chosen, strict=True))


def _filled(column: ColumnSpec, count: int, sizes: dict[str, int], rng: random.Random) -> Sequence[SqlValue]:
    """Values of one column for so many rows."""
    if column.kind == "key":
        return range(1, count + 1)
    if column.kind == "label":
        return rng.sample(column.values, count)
    drawn = rng.choices(_possible(column, sizes), k=count)
    return [None if rng.random() < column.gaps else value for value in drawn] if column.gaps else drawn


def _possible(column: ColumnSpec, sizes: dict[str, int]) -> Sequence[SqlValue]:
    match column.kind:
        case "group":
            return column.values
        case "day":
            return DAYS
        case "ref":
            return range(1, sizes[column.name.removesuffix("_id")] + 1)
        case "money":
            return _cents(column.low, column.high)
    return range(column.low, column.high + 1)


@cache
def _cents(low: int, high: int) -> tuple[float, ...]:
    """All amounts between."""
    return tuple(cents / 100 for cents in range(low * 100, high * 100 + 1))


NUMBER = r"(?<=[<>=])\d+|(?<=[<>=] )\d+"


def _shifted(by: int) -> Callable[[re.Match[str]], str]:
    return lambda number: str(int(number[0]) + by)


DISTRACTOR_EDITS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r" WHERE .*?(?= GROUP BY| ORDER BY|$)", ""),
    (r" HAVING .*?(?= ORDER BY|$)", ""),
    (r"([<>])( ?)(?=\d)", r"\1=\2"),
    (r"([<>])=( ?)(?=\d)", r"\1\2"),
    (NUMBER, _shifted(1)),
    (NUMBER, _shifted(-1)),
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
"""What is replaced in a query of ours, and by what."""


def make_distractors(question: SqlQuestion) -> tuple[str, ...]:
    """One slip each: on one of two databases at least they must give something else."""
    query = question.query
    slips = [re.sub(pattern, instead, query) for pattern, instead in DISTRACTOR_EDITS]
    slips += [re.sub(rf"\b{column}\b", other, query) for column, other in permutations(question.alike, 2)]
    return tuple(slip for slip in dict.fromkeys(slips) if slip != query)


TRIES = 20
"""Pairs that are drawn for a question."""


class CheckDatabase(NamedTuple):
    image: bytes
    wanted: QueryResult
    """What the right query gives."""


def make_check_databases(
    question: SqlQuestion, schema: Schema, rng: random.Random
) -> tuple[CheckDatabase, CheckDatabase] | None:
    """None if no pair was found that tells knowing from luck and from carelessness."""
    near = make_distractors(question)
    for _ in range(TRIES):
        (shown, slips), (hidden, others) = (_drawn(question, schema, near, rng) for _ in range(2))
        if _tells(shown.wanted, hidden.wanted, question.ordered) and not any(
            equal_results(slip, shown.wanted, question.ordered)
            and equal_results(other, hidden.wanted, question.ordered)
            for slip, other in zip(slips, others, strict=True)
        ):
            return shown, hidden
    return None


def _drawn(
    question: SqlQuestion, schema: Schema, near: Sequence[str], rng: random.Random
) -> tuple[CheckDatabase, Sequence[QueryResult]]:
    """From one number, so that a second attempt makes the same one."""
    return run_beside_queries(partial(_made, question, schema, near, rng.getrandbits(64)))


def _made(
    question: SqlQuestion, schema: Schema, near: Sequence[str], seed: int
) -> tuple[CheckDatabase, Sequence[QueryResult]]:
    """A database with rows of its own, and what near misses give on it."""
    rng = random.Random(seed)
    with closing(make_database(schema, rng)) as connection:
        if question.planted is not None:
            plant_rows(connection, question.planted, rng)
        slips = [_given(connection, query) for query in near]
        return CheckDatabase(_image(connection), _given(connection, question.query)), slips


def _given(connection: sqlite3.Connection, query: str) -> QueryResult:
    cursor = connection.execute(query)
    return QueryResult(columns=tuple(column[0] for column in cursor.description), rows=tuple(cursor.fetchall()))


def _image(connection: sqlite3.Connection) -> bytes:
    try:
        return connection.serialize()
    except sqlite3.OperationalError as error:  # Python does not say so, but there is no other reason
        raise MemoryError from error


def _tells(shown: QueryResult, hidden: QueryResult, ordered: bool) -> bool:
    """Whether there is something to find, and not the same on both."""
    found = all(any(cell is not None for row in rows.rows for cell in row) for rows in (shown, hidden))
    return found and not equal_results(shown, hidden, ordered)
