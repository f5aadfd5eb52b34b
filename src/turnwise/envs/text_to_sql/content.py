"""Fills a schema with rows from a random stream."""

import random
import sqlite3
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache

from turnwise.envs.text_to_sql.question import Planted
from turnwise.envs.text_to_sql.schema import Column, Schema
from turnwise.tools.sql.query import SqlValue

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


def plant(connection: sqlite3.Connection, planted: Planted, rng: random.Random) -> None:
    """Which rows get the values is drawn."""
    column = planted.ref or "rowid"
    there = [found for (found,) in connection.execute(f"SELECT DISTINCT {column} FROM {planted.table} ORDER BY 1")]
    chosen = rng.sample(there, len(planted.values))
    change = f"UPDATE {planted.table} SET {planted.column} = ? WHERE {column} = ?"
    connection.executemany(change, zip(planted.values, chosen, strict=True))


def _filled(column: Column, count: int, sizes: dict[str, int], rng: random.Random) -> Sequence[SqlValue]:
    """Values of one column for so many rows."""
    if column.kind == "key":
        return range(1, count + 1)
    if column.kind == "label":
        return rng.sample(column.values, count)
    drawn = rng.choices(_possible(column, sizes), k=count)
    return [None if rng.random() < column.gaps else value for value in drawn] if column.gaps else drawn


def _possible(column: Column, sizes: dict[str, int]) -> Sequence[SqlValue]:
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
