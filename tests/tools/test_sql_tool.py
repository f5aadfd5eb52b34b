"""The tool sql: read-only whatever the query, and within its limits."""

import asyncio
import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import ToolCall
from turnwise.tools.sql import query as sql_query
from turnwise.tools.sql.query import MAX_COUNTED_ROWS, QueryResult, SqlLimits, read_schema, run_query
from turnwise.tools.sql.threads import SharedLock
from turnwise.tools.sql.tool import format_table, make_sql_tool
from turnwise.tools.tool import ToolError, ToolResult
from turnwise.tools.toolbox import ToolBox
from work_for_tests import wait_until

CONTENT = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, age INTEGER);
CREATE TABLE rooms (id INTEGER PRIMARY KEY, person_id INTEGER, floor INTEGER);
CREATE INDEX by_age ON people (age);
CREATE VIEW adults AS SELECT name FROM people WHERE age >= 18;
INSERT INTO people VALUES (1, 'Ann', 31), (2, 'Bob', NULL), (3, 'Eve', 7);
INSERT INTO rooms SELECT value, 1 + value % 3, value FROM json_each('[' || (
  WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 400) SELECT group_concat(x) FROM n) || ']');
"""
QUICK = SqlLimits(timeout_s=60.0)


@pytest.fixture(scope="module")
def image() -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(CONTENT)
        return connection.serialize()


@pytest.fixture
def file(tmp_path: Path, image: bytes) -> Iterator[Path]:
    """Database file. Afterwards its bytes must be unchanged, with no other file beside it."""
    path = tmp_path / "strange name?#%41.db"
    path.write_bytes(image)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    yield path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def asked(options: dict[str, Any], *queries: str) -> list[ToolResult]:
    async def ask() -> list[ToolResult]:
        async with ToolBox([make_sql_tool(options)]).open(seed=0) as tools:
            return [await tools.call(ToolCall(name="sql", arguments=query)) for query in queries]

    return asyncio.run(ask())


def test_result_is_a_compact_table(file: Path) -> None:
    (result,) = asked({"database": str(file)}, "SELECT name, age FROM people ORDER BY id")
    assert result.text == "name | age\nAnn | 31\nBob | NULL\nEve | 7" and not result.failed


def test_rows_beyond_the_limit_are_counted(file: Path) -> None:
    few, many = asked({"database": file, "max_rows": 2}, "SELECT id FROM rooms", "SELECT 1 FROM rooms a, rooms b")
    assert few.text == "id\n1\n2\n... 398 more rows"
    assert many.text == f"1\n1\n1\n... more than {MAX_COUNTED_ROWS} more rows"
    (last,) = asked({"database": file, "max_rows": 2}, "SELECT id FROM people")
    assert last.text.endswith("... 1 more row")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "NULL"),
        ("NULL", "'NULL'"),
        ("null", "'null'"),
        ("", "''"),
        ("a", "a"),
        ("12", "'12'"),
        (12, "12"),
        (1.5, "1.5"),
        ("a | b", "'a | b'"),
        ("it's", "it's"),
        ("'x'", "'''x'''"),
        (" x", "' x'"),
        ("x\ny", "'x\\ny'"),
        ("x\r\n\u2028y", "'x\\n\\ny'"),
        (b"\x00\xff", "x'00ff'"),
        ("... 3 more rows", "'... 3 more rows'"),
        ("(no rows)", "'(no rows)'"),
        ("a" * 500, "a" * 97 + "..."),
        (b"a" * 500, ("x'" + "61" * 500)[:97] + "..."),
    ],
)
def test_values_of_different_types_look_different(value: Any, shown: str) -> None:
    assert format_table(QueryResult(columns=("c",), rows=((value,),))) == f"c\n{shown}"


@given(st.lists(st.lists(st.none() | st.integers() | st.text() | st.binary(), min_size=2, max_size=2), max_size=5))
def test_row_is_always_one_line(rows: list[list[Any]]) -> None:
    text = format_table(QueryResult(columns=("a", "b\n"), rows=tuple(map(tuple, rows))))
    assert len(text.splitlines()) == 1 + max(1, len(rows))


def test_empty_result_is_reported_as_no_rows(image: bytes) -> None:
    assert format_table(run_query(image, "SELECT name FROM people WHERE id = 9", QUICK)) == "name\n(no rows)"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT nme FROM people", 'no such column: nme: did you mean "name"?'),
        ("SELECT r.flor FROM rooms r", 'no such column: r.flor: did you mean "floor"?'),
        ("SELECT rooms.nam FROM rooms, people", "no such column: rooms.nam: there are floor, id, person_id"),
        ("SELECT age FROM rooms", "no such column: age: it is in people"),
        ("SELECT * FROM peple", 'no such table: peple: did you mean "people"?'),
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("", "not a query"),
        ("-- nothing", "not a query"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT 1; DROP TABLE people", "one statement"),
        ("SELECT ?", "variables"),
        ("SELECT :name", "variables"),
        ("SELECT 1\0", "null character"),
        ("SELECT '\ud800'", "unpaired surrogate"),
        ("SELECT max(1, 2) OVER ()", "window function"),
        ("SELECT abs(-9223372036854775808)", "integer overflow"),
    ],
)
def test_query_error_is_one_line(image: bytes, query: str, said: str) -> None:
    with pytest.raises(ToolError) as caught:
        run_query(image, query, QUICK)
    assert said in str(caught.value) and "\n" not in str(caught.value)


FORBIDDEN = [
    "ATTACH 'other.db' AS other",
    "ATTACH ':memory:' AS other",
    "AT/**/TACH 'x' AS y",
    "/* SELECT */ ATTACH 'x' AS y",
    "-- SELECT\nATTACH 'x' AS y",
    "DETACH main",
    "PRAGMA writable_schema = 1",
    "PRAGMA main.writable_schema = on",
    "PRAGMA query_only = off",
    "PRAGMA hard_heap_limit = 0",
    "PRAGMA temp_store_directory = '/'",
    "PRAGMA journal_mode = wal",
    "PRAGMA database_list",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_function_list",
    "SELECT load_extension('evil.so')",
    "SELECT LOAD_EXTENSION('evil.so', 'main')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('owned', 'x')",
    "SELECT edit('x')",
    "SELECT random()",
    "SELECT hex(randomblob(4))",
    "SELECT rtreecheck('people')",
    "SELECT sqlite_compileoption_get(1)",
    "SELECT sqlite_source_id()",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_stmt",
    "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM fts3tokenize('simple', 'a b')",
    "SELECT * FROM fts5vocab",
    "SELECT * FROM sqlite_temp_master",
    "SELECT * FROM csv('/etc/passwd')",
    "CREATE TABLE mine (x)",
    "CREATE TEMP TABLE mine (x)",
    "CREATE TEMP TABLE mine AS SELECT * FROM people",
    "CREATE TEMP VIEW mine AS SELECT 1",
    "CREATE TEMP TRIGGER t AFTER INSERT ON people BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE temp.f USING fts5(x)",
    "CREATE VIRTUAL TABLE temp.d USING dbstat",
    "CREATE INDEX mine ON people (name)",
    "ALTER TABLE people RENAME TO others",
    "DROP TABLE people",
    "DROP VIEW adults",
    "INSERT INTO people VALUES (9, 'Zoe', 1)",
    "INSERT INTO people VALUES (9, 'Zoe', 1) RETURNING *",
    "WITH n AS (SELECT 1) INSERT INTO people SELECT 9, 'x', 1 FROM n",
    "REPLACE INTO people VALUES (1, 'x', 1)",
    "INSERT INTO sqlite_master VALUES (1, 2, 3, 4, 5)",
    "UPDATE people SET age = 0",
    "UPDATE people SET age = 0 RETURNING age",
    "DELETE FROM people",
    "EXPLAIN DELETE FROM people",
    "VACUUM",
    "VACUUM INTO 'copy.db'",
    "REINDEX by_age",
    "ANALYZE",
    "BEGIN",
    "BEGIN EXCLUSIVE",
    "COMMIT",
    "SAVEPOINT a",
]


@pytest.mark.parametrize("query", FORBIDDEN)
def test_everything_but_reading_is_refused(file: Path, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    with pytest.raises(ToolError) as caught:
        run_query(file, query, QUICK)
    assert str(file.parent) not in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM people",
        "SELECT count(*) FROM people JOIN rooms ON people.id = rooms.person_id",
        "SELECT name FROM adults",
        "WITH a AS (SELECT age FROM people), b AS (SELECT avg(age) FROM a) SELECT * FROM b",
        "WITH a AS MATERIALIZED (SELECT id FROM people) SELECT count(*) FROM a x, a y",
        "SELECT count(*) FROM (SELECT DISTINCT age FROM people)",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1000) SELECT max(x) FROM n",
        "SELECT name, row_number() OVER (ORDER BY id) FROM people",
        "SELECT upper(name) || '-' || coalesce(age, 'none') FROM people",
        "SELECT value FROM json_each('[1, 2]')",
        "SELECT '{\"a\": 1}' ->> 'a'",
        "SELECT * FROM sqlite_master",
        "SELECT name FROM pragma_table_info('people')",
        "PRAGMA table_info(people)",
        "PRAGMA index_list(people)",
        "EXPLAIN QUERY PLAN SELECT * FROM people",
        "SELECT strftime('%Y', '2020-01-02')",
        "SELECT name FROM people WHERE name LIKE 'a%' AND age BETWEEN 1 AND 99 AND id IN (SELECT person_id FROM rooms)",
        "VALUES (1), (2)",
        "SELECT 1 /* ; DROP TABLE people */ -- ;",
        "SELECT 1;",
    ],
)
def test_all_kinds_of_reading_are_allowed(file: Path, query: str) -> None:
    assert run_query(file, query, QUICK).columns


BOMBS = {
    "a cross join": "SELECT count(*) FROM rooms a, rooms b, rooms c, rooms d, rooms e",
    "a recursion without end": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
    "one that doubles": "WITH RECURSIVE n(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM n) SELECT count(*) FROM n",
    "one that keeps all it makes": "WITH RECURSIVE n(x, y) AS (SELECT 1, hex(zeroblob(4500)) UNION SELECT x + 1, y"
    " FROM n) SELECT count(*) FROM n",
    "a sort of everything": "SELECT hex(zeroblob(4500)) x FROM rooms a, rooms b, rooms c ORDER BY x, a.id",
    "a table of everything": "WITH m AS MATERIALIZED (SELECT hex(zeroblob(4500)) FROM rooms a, rooms b, rooms c)"
    " SELECT count(*) FROM m x, m y",
    "groups": "SELECT count(*), group_concat(a.id || b.id || c.id) FROM rooms a, rooms b, rooms c GROUP BY a.id * b.id",
    "windows": "SELECT sum(a.id) OVER (ORDER BY a.id ROWS BETWEEN 5000 PRECEDING AND 5000 FOLLOWING)"
    " FROM rooms a, rooms b, rooms c",
    "a tree of tables": "WITH c0 AS (SELECT 1 x)"
    + "".join(f", c{n} AS (SELECT a.x FROM c{n - 1} a, c{n - 1} b)" for n in range(1, 30))
    + " SELECT * FROM c29",
    "zeros": "SELECT zeroblob(1000000000)",
    "many zeros": "SELECT " + ", ".join(["hex(zeroblob(4500))"] * 40) + " FROM rooms a, rooms b",
    "padding": "SELECT printf('%1000000000d', 1) || replace(hex(zeroblob(4500)), '0', hex(zeroblob(4500)))",
    "a long trim": "SELECT trim(replace(hex(zeroblob(4500)), '0', 'a'), replace(hex(zeroblob(4500)), '0', 'b')"
    " || 'a') FROM rooms a, rooms b",
    "a wild LIKE": f"SELECT count(*) FROM rooms a, rooms b WHERE replace(hex(zeroblob(4500)), '0', 'a') LIKE"
    f" '{'%_a' * 30}b'",
    "a deep expression": "SELECT " + "(" * 3000 + "1" + ")" * 3000,
    "a long chain": "SELECT " + " + ".join(["1"] * 4000),
    "negations": "SELECT " + "NOT " * 4000 + "1",
    "unions": " UNION ".join(["SELECT 1"] * 1000),
    "columns": "SELECT " + ", ".join(["1"] * 1000),
    "length": "SELECT '" + "a" * 100_000 + "'",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_expensive_query_ends_within_limits(image: bytes, bomb: str) -> None:
    before = set(threading.enumerate())
    try:
        result = run_query(image, BOMBS[bomb], SqlLimits(timeout_s=0.3))
    except ToolError as error:
        assert len(str(error)) < 400
    else:
        size = sum(len(cell) for row in result.rows for cell in row if isinstance(cell, str | bytes))
        assert size <= SqlLimits().max_bytes and len(result.rows) <= SqlLimits().max_rows
    assert wait_until(lambda: not set(threading.enumerate()) - before), "the thread of the query ends too"


def test_step_limit_is_deterministic(image: bytes) -> None:
    slow, count = SqlLimits(timeout_s=600, max_steps=50_000), "SELECT count(*) FROM rooms a, rooms b"
    for _ in range(3):
        with pytest.raises(ToolError, match="too long"):
            run_query(image, count, slow)
        assert run_query(image, count, SqlLimits(timeout_s=600, max_steps=5_000_000)).rows == ((160_000,),)


def test_query_out_of_memory_because_of_others_succeeds(image: bytes) -> None:
    """Many queries run at once; only those that use too much memory themselves are refused."""
    greedy, modest = BOMBS["a table of everything"], "SELECT count(*) FROM rooms a, rooms b"
    answers: list[tuple[str, object]] = []

    def ask(query: str) -> None:
        try:
            limits = SqlLimits(timeout_s=60.0, max_steps=400_000 if query == greedy else 20_000_000)
            answers.append((query, run_query(image, query, limits).rows[0][0]))
        except ToolError as error:
            answers.append((query, str(error)))

    threads = [threading.Thread(target=ask, args=(query,)) for query in [greedy, modest, modest] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert {answer for query, answer in answers if query == modest} == {160_000}
    assert all("memory" in str(answer) for query, answer in answers if query == greedy) and len(answers) == 6


def test_query_out_of_memory_is_repeated_exclusively(image: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    run, gate, asked = sql_query._run, sql_query._memory_lock, list[bool]()

    def greedy_at_first(*given: Any) -> QueryResult:
        asked.append(gate._closed)
        if len(asked) == 1:
            raise MemoryError
        return run(*given)

    monkeypatch.setattr(sql_query, "_run", greedy_at_first)
    assert run_query(image, "SELECT 1", QUICK).rows == ((1,),)
    assert asked == [False, True]


def test_file_is_read_only_even_without_guard(file: Path) -> None:
    with closing(sql_query._connect(file)) as connection:
        for query in ("INSERT INTO people VALUES (9, 'Zoe', 1)", "PRAGMA journal_mode = wal", "CREATE TABLE x (y)"):
            connection.execute("PRAGMA query_only = off")
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute(query)


def test_shared_lock_admits_many_or_one() -> None:
    gate, inside, most, alone = SharedLock(), [0], [0], list[int]()
    lock, met = threading.Lock(), threading.Barrier(3)

    def enter(entry: Callable[[], Any], note: Callable[[int], None]) -> None:
        with entry():
            with lock:
                inside[0] += 1
                note(inside[0])
            time.sleep(0.005)
            with lock:
                inside[0] -= 1

    def shared() -> None:
        with gate.shared():
            met.wait(60)  # all three at a time
        for _ in range(5):
            enter(gate.shared, lambda count: most.append(count))

    def single() -> None:
        for _ in range(5):
            enter(lambda: gate.exclusive(60), lambda count: alone.append(count))

    threads = [threading.Thread(target=work) for work in (shared, shared, shared, single, single)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert alone == [1] * 10 and len(most) == 16


def test_query_does_not_block_the_event_loop(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, running, go = sql_query._run, threading.Event(), threading.Event()

    def held(*given: Any) -> QueryResult:
        running.set()
        assert go.wait(60), "the event loop is blocked"
        return run(*given)

    monkeypatch.setattr(sql_query, "_run", held)

    async def ask() -> ToolResult:
        async with ToolBox([make_sql_tool({"database": file, "timeout_s": 60})]).open(seed=0) as tools:
            call = asyncio.ensure_future(tools.call(ToolCall(name="sql", arguments="SELECT 1 one")))
            while not running.is_set():
                await asyncio.sleep(0.01)
            go.set()
            return await call

    assert asyncio.run(ask()).text == "one\n1"


def test_unreadable_database_is_not_the_agents_fault(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailure):
        run_query(tmp_path / "none.db", "SELECT 1", QUICK)
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database at all" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        run_query(broken, "SELECT 1", QUICK)
    with pytest.raises(sqlite3.DatabaseError):
        run_query(b"no database at all" * 100, "SELECT 1", QUICK)
    assert not (tmp_path / "none.db").exists()


def test_locked_database_is_not_the_agents_fault(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.tools.sql.query.BUSY_S", 0.05)
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            run_query(file, "SELECT 1 FROM people", QUICK)
        writer.execute("ROLLBACK")
    assert run_query(file, "SELECT 1", QUICK).rows == ((1,),)


def test_corrupt_database_is_not_the_agents_fault(image: bytes) -> None:
    torn = image[:4096] + b"\xff" * (len(image) - 4096)
    with pytest.raises(sqlite3.DatabaseError):
        run_query(torn, "SELECT * FROM people", QUICK)


def test_wal_database_is_read_without_writing(file: Path) -> None:
    twin = file.parent / "twin.db"
    twin.write_bytes(file.read_bytes())
    with closing(sqlite3.connect(twin)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute("INSERT INTO people VALUES (4, 'Ian', 50)")
        connection.commit()
        log = run_query(twin, "SELECT count(*) FROM people", QUICK)
        assert log.rows == ((4,),), "the write-ahead log is read"
    assert [found.name for found in file.parent.iterdir() if found.name.startswith("twin")] == ["twin.db"]
    before = twin.read_bytes()
    assert run_query(twin, "SELECT count(*) FROM people", QUICK).rows == ((4,),)
    assert [found.name for found in file.parent.iterdir() if found.name.startswith("twin")] == ["twin.db"]
    assert twin.read_bytes() == before
    twin.unlink()


def test_wide_tables_and_long_values_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE wide ({', '.join(f'c{n}' for n in range(300))})")
        connection.execute("INSERT INTO wide (c0, c299) VALUES (?, CAST(x'ff' AS TEXT))", ("x" * 40_000,))
        connection.commit()
    roomy = replace(QUICK, max_value=100_000)
    assert run_query(path, "SELECT c299, length(c0) FROM wide", roomy).rows == (("\ufffd", 40_000),)
    with pytest.raises(ToolError, match="too big"):
        run_query(path, "SELECT length(c0) FROM wide", QUICK)
    with pytest.raises(ToolError, match="too many columns"):
        run_query(path, "SELECT * FROM wide", roomy)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "database"),
        ({"database": "FOLDER/none.db"}, "none.db does not exist"),
        ({"database": "FOLDER"}, "is not a file"),
        ({"database": "FILE", "max_rows": 0}, "max_rows"),
        ({"database": "FILE", "timeout_s": -1}, "timeout_s"),
        ({"database": "FILE", "rows": 5}, 'no option "rows": did you mean "max_rows"'),
    ],
)
def test_wrong_sql_options_are_a_user_error(file: Path, options: dict[str, Any], said: str) -> None:
    places = {"FILE": str(file), "FOLDER/none.db": str(file.parent / "none.db"), "FOLDER": str(file.parent)}
    given = {name: places.get(value, value) for name, value in options.items()}
    with pytest.raises(UserError, match=said) as caught:
        make_sql_tool(given)
    assert "\n" not in str(caught.value)


def test_view_without_its_table_is_ignored() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE people (name)")
        connection.execute("CREATE VIEW ghosts AS SELECT name FROM gone")
        image = connection.serialize()
    assert read_schema(image) == {"people": ("name",), "ghosts": ()}
    assert run_query(image, "SELECT count(*) FROM people", QUICK).rows == ((0,),)
    for query, said in (("SELECT nam FROM people", 'did you mean "name"'), ("SELECT * FROM ghosts", "no such table")):
        with pytest.raises(ToolError, match=said):
            run_query(image, query, QUICK)


def test_description_lists_tables(file: Path) -> None:
    spec = make_sql_tool({"database": file}).spec
    assert spec.name == "sql" and list(spec.parameters["properties"]) == ["query"]
    assert "people(id, name, age), rooms(id, person_id, floor), adults(name)" in spec.description
    assert read_schema(file)["people"] == ("id", "name", "age")


@settings(max_examples=60)
@given(st.text(max_size=60) | st.lists(st.sampled_from(" ".join(FORBIDDEN).split()), max_size=8).map(" ".join))
def test_arbitrary_query_text_fails_cleanly(image: bytes, query: str) -> None:
    try:
        run_query(image, query, SqlLimits(timeout_s=0.5))
    except ToolError as error:
        assert "\n" not in str(error).replace(query, "") or "\n" in query
