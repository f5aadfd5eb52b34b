"""Two databases for a question: one that is shown, and one that checks what was right by luck alone."""

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from turnwise.envs.text_to_sql.content import make_database, plant
from turnwise.envs.text_to_sql.near import near_misses
from turnwise.envs.text_to_sql.question import Question
from turnwise.envs.text_to_sql.schema import Schema
from turnwise.rewards.sql_results import equal_results
from turnwise.tools.sql.query import QueryResult, run_beside_queries

TRIES = 20
"""Pairs that are drawn for a question."""


class Database(NamedTuple):
    image: bytes
    wanted: QueryResult
    """What the right query gives."""


def make_pair(question: Question, schema: Schema, rng: random.Random) -> tuple[Database, Database] | None:
    """None if no pair was found that tells knowing from luck and from carelessness."""
    near = near_misses(question)
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
    question: Question, schema: Schema, near: Sequence[str], rng: random.Random
) -> tuple[Database, Sequence[QueryResult]]:
    """From one number, so that a second attempt makes the same one."""
    return run_beside_queries(partial(_made, question, schema, near, rng.getrandbits(64)))


def _made(question: Question, schema: Schema, near: Sequence[str], seed: int) -> tuple[Database, Sequence[QueryResult]]:
    """A database with rows of its own, and what near misses give on it."""
    rng = random.Random(seed)
    with closing(make_database(schema, rng)) as connection:
        if question.planted is not None:
            plant(connection, question.planted, rng)
        slips = [_given(connection, query) for query in near]
        return Database(_image(connection), _given(connection, question.query)), slips


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
