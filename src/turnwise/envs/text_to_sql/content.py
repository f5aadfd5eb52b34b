"""Fills a schema with rows from a random stream."""

import random
import sqlite3
from datetime import date, timedelta

from turnwise.envs.text_to_sql.question import Planted
from turnwise.envs.text_to_sql.schema import Column, Schema, Table
from turnwise.tools.sql_query import Cell

FIRST_DAY, DAYS = date(2024, 1, 1), 366


def make_database(schema: Schema, rng: random.Random) -> sqlite3.Connection:
    """In memory; it is the caller's to close."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    sizes: dict[str, int] = {}
    connection.execute("BEGIN")
    for table in schema.tables:
        sizes[table.noun] = rng.randint(*table.rows)
        connection.execute(table.create())
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", _rows(table, sizes, rng))
    connection.execute("COMMIT")
    return connection


def plant(connection: sqlite3.Connection, planted: Planted, rng: random.Random) -> None:
    """Which rows get the value is drawn."""
    column = planted.ref or "rowid"
    there = [found for (found,) in connection.execute(f"SELECT DISTINCT {column} FROM {planted.table} ORDER BY 1")]
    chosen = rng.sample(there, 1 if planted.ref else planted.rows)
    change = f"UPDATE {planted.table} SET {planted.column} = ? WHERE {column} = ?"
    connection.executemany(change, [(planted.value, each) for each in chosen])


def _rows(table: Table, sizes: dict[str, int], rng: random.Random) -> list[tuple[Cell, ...]]:
    count = sizes[table.noun]
    columns = [_filled(column, count, sizes, rng) for column in table.columns]
    return list(zip(*columns, strict=True))


def _filled(column: Column, count: int, sizes: dict[str, int], rng: random.Random) -> list[Cell]:
    if column.kind == "key":
        return list(range(1, count + 1))
    if column.kind == "label":
        return list(rng.sample(column.values, count))
    return [None if rng.random() < column.gaps else _value(column, sizes, rng) for _ in range(count)]


def _value(column: Column, sizes: dict[str, int], rng: random.Random) -> Cell:
    match column.kind:
        case "group":
            return rng.choice(column.values)
        case "ref":
            return _between(rng, 1, sizes[column.name.removesuffix("_id")])
        case "money":
            return _between(rng, column.low * 100, column.high * 100) / 100
        case "day":
            return (FIRST_DAY + timedelta(days=rng.randrange(DAYS))).isoformat()
    return _between(rng, column.low, column.high)


def _between(rng: random.Random, low: int, high: int) -> int:
    """As `randint`, in a third of its time: a task draws hundreds of these."""
    return low + int(rng.random() * (high - low + 1))
