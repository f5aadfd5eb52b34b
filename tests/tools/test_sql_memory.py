"""SQLite's heap limit is shared by the process: no query fails because another one uses it up."""

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from turnwise.envs.text_to_sql import databases
from turnwise.envs.text_to_sql.env import LIMITS, TextToSql
from turnwise.tools.sql import query as sql_query
from turnwise.tools.sql.query import HEAP_BYTES, SqlLimits, run_beside_queries, run_query
from turnwise.tools.sql.threads import SharedLock, run_in_daemon_thread
from turnwise.tools.tool import ToolError

GREEDY = "WITH n(x, y) AS (SELECT 1, hex(zeroblob(%d)) UNION SELECT x + 1, y FROM n) SELECT count(*) FROM n"
"""Query that keeps all of its rows in memory."""


def reset(level: str = "full") -> TextToSql:
    env = TextToSql({"level": level})
    env.reset(random.Random(5))
    return env


def take_all(taken: threading.Event) -> None:
    """Use up the memory until someone waits for the exclusive lock."""
    with sql_query._memory_lock.shared(), closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")
        connection.execute("CREATE TABLE t (x)")
        for size in (1_000_000, 10_000, 100, 1):
            with pytest.raises(MemoryError):
                while True:
                    connection.execute("INSERT INTO t VALUES (zeroblob(?))", (size,))
        taken.set()
        while not sql_query._memory_lock._closed:
            time.sleep(0.001)


def test_databases_are_built_while_a_query_uses_all_memory() -> None:
    calm, taken = reset(), threading.Event()
    holder = run_in_daemon_thread(lambda: take_all(taken))
    assert taken.wait(120)
    env = reset()
    holder.result(120)
    assert (env.shown, env.hidden) == (calm.shown, calm.hidden)


def test_out_of_memory_work_is_repeated_exclusively(monkeypatch: pytest.MonkeyPatch) -> None:
    calm, made, alone = reset(), databases._build_database, list[bool]()

    def greedy(*given: Any) -> Any:
        alone.append(sql_query._memory_lock._closed)
        if not alone[-1]:
            raise MemoryError
        return made(*given)

    monkeypatch.setattr(databases, "_build_database", greedy)
    env = reset()
    assert (env.question, env.shown, env.hidden) == (calm.question, calm.shown, calm.hidden)
    assert alone[:2] == [False, True]


def test_failed_copy_counts_as_out_of_memory() -> None:
    class Full:
        def serialize(self) -> bytes:
            raise sqlite3.OperationalError("unable to serialize 'main'")

    with pytest.raises(MemoryError):
        databases._serialize(Full())  # type: ignore[arg-type]


def test_other_errors_are_raised_at_once() -> None:
    tries = list[int]()

    def broken() -> None:
        tries.append(1)
        raise sqlite3.OperationalError("no such table")

    with pytest.raises(sqlite3.OperationalError):
        run_beside_queries(broken)
    assert tries == [1] and run_beside_queries(lambda: 3) == 3


def test_queries_of_small_databases_fit_in_memory() -> None:
    image = reset().shown.image
    with pytest.raises(ToolError, match="memory"):
        run_query(image, GREEDY % 4500, SqlLimits(max_steps=LIMITS.max_steps))
    for size, said in ((4500, "too big"), (490, "too long")):
        with pytest.raises(ToolError, match=said):
            run_query(image, GREEDY % size, LIMITS)


def test_database_without_tables_can_be_queried() -> None:
    assert run_query(b"", "SELECT 1", LIMITS).rows == ((1,),)


def test_exclusive_lock_ignores_hanging_holder() -> None:
    gate, inside, go = SharedLock(), threading.Event(), threading.Event()

    def hang() -> None:
        with gate.shared():
            inside.set()
            go.wait(120)

    hanging = run_in_daemon_thread(hang)
    assert inside.wait(120)
    with gate.exclusive(0.05):
        assert not hanging.done()
    go.set()
    hanging.result(120)
    with gate.shared(), gate.shared():
        assert gate._running == 2


def test_query_that_fails_before_start_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken() -> Iterator[None]:
        raise OSError("no gate")
        yield

    monkeypatch.setattr(sql_query._memory_lock, "shared", broken)
    asked = run_in_daemon_thread(lambda: run_query(b"", "SELECT 1", LIMITS))
    with pytest.raises(OSError, match="no gate"):
        asked.result(5)
