"""Time limits of queries, also within a single step, and functions of the current time."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.messages import ToolCall
from turnwise.tools.sql import query as sql_query
from turnwise.tools.sql.guard import MAX_FUNCTIONS
from turnwise.tools.sql.query import QueryResult, SqlLimits, run_query
from turnwise.tools.sql.threads import run_in_daemon_thread
from turnwise.tools.sql.tool import GRACE_S, make_sql_tool
from turnwise.tools.tool import ToolError
from turnwise.tools.toolbox import ToolBox
from work_for_tests import wait_until

LIMITS = SqlLimits(timeout_s=60.0)
LONG = """WITH a AS MATERIALIZED (SELECT replace(hex(zeroblob(2400)), '0', 'aa') t),
b AS MATERIALIZED (SELECT replace(hex(zeroblob(1200)), '0', 'aa') || 'b' s),
n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) """
"""A thousand slow searches in texts of maximum length."""


@pytest.fixture(scope="module")
def image() -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE days (day TEXT)")
        connection.execute("INSERT INTO days VALUES ('2024-02-28'), ('now')")
        connection.execute("CREATE VIEW years AS SELECT strftime('%Y', '2024-02-28') y, trim('xax', 'x') t")
        connection.execute("CREATE VIEW today AS SELECT date('now') d")
        connection.commit()
        return connection.serialize()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The query HANG runs until the event is set, beyond all limits."""
    run, let_go = sql_query._run, threading.Event()

    def hang(database: Any, query: str, limits: SqlLimits) -> QueryResult:
        if query == "HANG":
            let_go.wait(60)
            return QueryResult(columns=(), rows=())
        return run(database, query, limits)

    monkeypatch.setattr(sql_query, "_run", hang)
    monkeypatch.setattr(sql_query, "LATE_S", 0.1)
    yield let_go
    let_go.set()


def queries_since(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sql" and thread not in before]


def tree(count: int) -> str:
    """x + x + ... with `count` terms, without deep nesting."""
    return "x" if count == 1 else f"({tree(count // 2)}+{tree(count - count // 2)})"


SLOW = {
    "many searches": f"SELECT sum({'+'.join(f'instr(t, s || {n})' for n in range(45))}) FROM a, b, n",
    "one search at many places": f"SELECT {tree(1000)} FROM (SELECT instr(t, s) x FROM a, b, n)",
    "too many places": f"SELECT {tree(4000)} FROM (SELECT instr(t, s) x FROM a, b, n)",
    "the same by an alias": f"SELECT instr(t, s) x FROM a, b, n WHERE {tree(1000)} < 0",
    "a trim by many letters": "SELECT trim(t, s || 'c'), ltrim(t, s), rtrim(t, 'b' || s) FROM a, b, n",
    "replacements": f"SELECT {tree(800)} FROM (SELECT length(replace(t, s, '')) x FROM a, b, n)",
}


@pytest.mark.parametrize("name", SLOW)
def test_single_row_stays_within_time_limit(image: bytes, name: str) -> None:
    """Nothing interrupts a query between two checks of the clock, so the work between them is limited."""
    before = set(threading.enumerate())
    try:
        run_query(image, LONG + SLOW[name], SqlLimits(timeout_s=0.5))
    except ToolError as error:
        assert "\n" not in str(error)
    assert wait_until(lambda: not queries_since(before)), "the thread of the query ends too"


def test_number_of_functions_is_limited(image: bytes) -> None:
    def calls(count: int) -> str:
        return f"SELECT max({', '.join(['abs(-1)'] * (count - 1))})"

    assert run_query(image, calls(MAX_FUNCTIONS), LIMITS).rows == ((1,),)
    with pytest.raises(ToolError, match=f"more than {MAX_FUNCTIONS} functions"):
        run_query(image, calls(MAX_FUNCTIONS + 1), LIMITS)


def test_hanging_query_is_abandoned(image: bytes, hanging: threading.Event) -> None:
    with pytest.raises(ToolError, match="too long"):
        run_query(image, "HANG", SqlLimits(timeout_s=0.1))
    assert not hanging.is_set(), "it still runs"
    assert run_query(image, "SELECT 1", LIMITS).rows == ((1,),), "others go on"


def test_hanging_query_is_the_agents_fault(tmp_path: Path, hanging: threading.Event) -> None:
    sqlite3.connect(tmp_path / "d.db").close()

    async def ask() -> Any:
        async with ToolBox([make_sql_tool({"database": tmp_path / "d.db", "timeout_s": 0.1})]).open(seed=0) as tools:
            return await tools.call(ToolCall(name="sql", arguments="HANG"))

    result = asyncio.run(ask())
    assert result.failed and result.text == "The query takes too long: make it simpler."


def test_waiting_for_the_lock_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that waits longer than its limit for the exclusive lock is still answered."""
    inside, go = threading.Event(), threading.Event()

    def alone() -> None:
        with sql_query._memory_lock.exclusive(20):
            inside.set()
            go.wait(60)

    monkeypatch.setattr(sql_query, "_run", lambda *_: QueryResult(columns=("n",), rows=((2,),)))
    monkeypatch.setattr(sql_query, "LATE_S", 0.01)
    holder = run_in_daemon_thread(alone)
    assert inside.wait(60)
    waiting = run_in_daemon_thread(lambda: run_query(b"", "SELECT 2", SqlLimits(timeout_s=0.01)))
    time.sleep(0.3)
    assert not waiting.done()
    monkeypatch.setattr(sql_query, "LATE_S", 60.0)
    go.set()
    assert waiting.result(60).rows == ((2,),)
    holder.result(60)


def test_daemon_thread_reports_errors_and_ends_with_program() -> None:
    def fail() -> None:
        assert threading.current_thread().daemon
        raise LookupError("so")

    with pytest.raises(LookupError, match="so"):
        run_in_daemon_thread(fail).result(60)
    assert run_in_daemon_thread(lambda: 3).cancel() is False


def test_call_timeout_exceeds_query_limits(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "d.db").close()
    rules = make_sql_tool({"database": tmp_path / "d.db", "timeout_s": 600}).rules
    assert rules.timeout_s >= 2 * (600 + sql_query.LATE_S) + GRACE_S


@pytest.mark.parametrize(
    "value",
    [
        "date('now')",
        "DATETIME('NOW')",
        "time('now', '+1 day')",
        "date()",
        "datetime()",
        "julianday()",
        "julianday('no' || 'w')",
        "date(x'6e6f77')",
        "date('now' || char(0))",
        "strftime('%s', 'now')",
        "strftime('%s')",
        "unixepoch('now')",
        "unixepoch('subsec')",
        "date('2024-01-01', 'localtime')",
        "datetime('2024-01-01', 'utc')",
        "date(day) FROM days WHERE day = 'now'",
        "d FROM today",
    ],
)
def test_current_time_and_time_zone_are_refused(image: bytes, value: str) -> None:
    with pytest.raises(ToolError, match="differ between runs"):
        run_query(image, f"SELECT {value}", LIMITS)


@pytest.mark.parametrize("value", ["date('now')", "[DATE] /* so */ ('now')", '"Date"()', "strftime--\n('%s')"])
def test_current_time_is_refused_in_any_spelling(value: str) -> None:
    with pytest.raises(ToolError, match="differ between runs"):
        run_query(b"", f"SELECT {value}", LIMITS)


@pytest.mark.parametrize("value", ["current_timestamp", "CURRENT_DATE", "current_time"])
def test_current_time_keywords_are_refused(image: bytes, value: str) -> None:
    with pytest.raises(ToolError, match="not authorized"):
        run_query(image, f"SELECT {value}", LIMITS)


@pytest.mark.parametrize(
    "value",
    [
        "date('2024-02-28', '+2 days')",
        "datetime('2024-02-28 10:11:12', 'start of month', '-1 second')",
        "time('10:11')",
        "julianday('2024-02-28')",
        "unixepoch('2024-02-28')",
        "strftime('%Y-%m %W %%', '2024-02-28')",
        "strftime('%Y', 1709078400, 'unixepoch')",
        "date(2460368.5)",
        "date('nonsense')",
        "date(NULL)",
        "strftime('%Y', NULL)",
        "'now'",
        "trim(11211, 1)",
        "rtrim(1.50, '05')",
        "trim(NULL, 'a')",
        "trim('a', NULL)",
        "trim(x'616261', 'a')",
        "trim('  a ')",
        "ltrim('aab', '')",
        "y FROM years",
        "t FROM years",
    ],
)
def test_dates_and_trims_match_sqlite(image: bytes, value: str) -> None:
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.deserialize(image)
        assert run_query(image, f"SELECT {value}", LIMITS).rows == tuple(plain.execute(f"SELECT {value}"))


@given(st.text("ab ä", max_size=8), st.text("ab ä", max_size=4), st.sampled_from(["trim", "ltrim", "rtrim"]))
def test_trim_matches_sqlite(image: bytes, text: str, letters: str, name: str) -> None:
    query = f"SELECT {name}('{text}', '{letters}')"
    with closing(sqlite3.connect(":memory:")) as plain:
        assert run_query(image, query, LIMITS).rows == tuple(plain.execute(query))


def test_two_databases_are_two_tools(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.execute(f"CREATE TABLE {name}s (n)")

    async def ask() -> list[Any]:
        tools = [make_sql_tool({"database": tmp_path / f"{name}.db", "name": name}) for name in ("one", "two")]
        async with ToolBox(tools).open(seed=0) as tools:
            assert [spec.name for spec in tools.specs] == ["one", "two"]
            return [await tools.call(ToolCall(name=name, arguments="SELECT * FROM ones")) for name in ("one", "two")]

    one, two = asyncio.run(ask())
    assert not one.failed and two.failed and "no such table: ones" in two.text


@pytest.mark.parametrize("name", ["", "a b", "1", "x" * 65, "a\n", "<tool_call>"])
def test_tool_name_must_be_an_identifier(tmp_path: Path, name: str) -> None:
    sqlite3.connect(tmp_path / "d.db").close()
    with pytest.raises(UserError, match="name"):
        make_sql_tool({"database": tmp_path / "d.db", "name": name})


def test_max_value_can_be_raised(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("INSERT INTO t VALUES (?)", ("x" * 40_000,))
        connection.commit()

    async def ask(**options: Any) -> str:
        async with ToolBox([make_sql_tool({"database": tmp_path / "d.db", **options})]).open(seed=0) as tools:
            return (await tools.call(ToolCall(name="sql", arguments="SELECT length(a) n FROM t"))).text

    assert "too big" in asyncio.run(ask()) and asyncio.run(ask(max_value=100_000)) == "n\n40000"
