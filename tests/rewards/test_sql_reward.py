"""The reward `sql` waits for no query longer than its limit."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from turnwise.core.errors import EnvironmentFailure
from turnwise.rewards.rubric import Submission
from turnwise.rewards.sql_results import SqlResult
from turnwise.tools.sql import query as sql_query
from turnwise.tools.sql.query import QueryResult, SqlLimits

RIGHT = "SELECT a FROM t"


@pytest.fixture
def database(tmp_path: Path) -> str:
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("INSERT INTO t VALUES ('" + "x" * 20_000 + "')")
        connection.commit()
    return str(tmp_path / "d.db")


def scored(answer: str, database: str, **options: Any) -> float:
    row = {"sql": RIGHT, "database": database}
    return asyncio.run(SqlResult(max_value=50_000, **options)(Submission(question="?", answer=answer, row=row)))


def test_sql_reward_times_out_without_blocking_the_loop(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, let_go, hung = sql_query._run, threading.Event(), threading.Event()

    def hang(place: Any, query: str, limits: SqlLimits) -> QueryResult:
        if query == "HANG":
            hung.set()
            assert threading.current_thread().daemon and let_go.wait(600)
        return run(place, query, limits)

    monkeypatch.setattr(sql_query, "_run", hang)
    monkeypatch.setattr(sql_query, "LATE_S", 0.1)
    assert scored("HANG", database, timeout_s=0.1) == 0.0
    assert hung.is_set() and not let_go.is_set(), "it is still running"
    let_go.set()


def test_sql_reward_max_value_is_an_option(database: str) -> None:
    assert scored(RIGHT, database) == 1.0
    short = Submission(question="?", answer=RIGHT, row={"sql": RIGHT, "database": database})
    with pytest.raises(EnvironmentFailure, match="too big"):
        asyncio.run(SqlResult()(short))
