"""text_to_sql: queries are judged by their results on a shown and on a hidden database."""

import asyncio
import os
import random
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.messages import assistant
from turnwise.core.protocols import StepResult
from turnwise.core.task import Split, Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.text_to_sql.databases import make_database
from turnwise.envs.text_to_sql.env import LIMITS, QUESTION_GENERATORS, TextToSql
from turnwise.envs.text_to_sql.questions import ADVANCED_QUESTIONS, ONE_TABLE_QUESTIONS
from turnwise.envs.text_to_sql.schemas import SCHEMAS, TINY
from turnwise.rewards.sql_results import equal_results, has_order_by
from turnwise.tools.sql import query as sql_query
from turnwise.tools.sql.query import QueryResult, SqlLimits, run_query
from turnwise.tools.tool import ToolError

SOAK = "TURNWISE_SOAK" in os.environ
NAME = "text_to_sql"
TINY_PARAMS = {"level": "tiny", "style": "answer"}


def answered(query: str) -> str:
    return f"<answer>{query}</answer>"


def make(index: int = 0, split: Split = "train", member: int = 0, **params: Any) -> Any:
    return load_spec(NAME).make(Task(env=NAME, seed=seed_for(split, index), split=split, params=params), member=member)


def play(said: Sequence[str], index: int = 0, **params: Any) -> tuple[list[StepResult], TextToSql]:
    """Play these answers; GOLD in them stands for the reference query."""

    async def run() -> tuple[list[StepResult], TextToSql]:
        runner = make(index, **params)
        await runner.start()
        env = runner.env
        results = [await runner.step(assistant(text.replace("GOLD", env.question.query))) for text in said]
        await runner.close()
        return results, env

    return asyncio.run(run())


def text_of(result: StepResult) -> str:
    return "\n".join(message.content for message in result.messages)


@pytest.mark.parametrize("params", [{}, {"level": "easy", "style": "llama"}, TINY_PARAMS], ids=str)
def test_solver_solves_every_task(params: dict[str, Any]) -> None:
    async def solve(index: int) -> bool:
        runner = make(index, **params)
        await runner.start()
        while True:
            result = await runner.step(assistant(runner.env.reply(runner.env.solve())))
            assert not result.invalid
            if result.over:
                await runner.close()
                return result.success and result.reward == 1.0

    async def all_of_them() -> list[bool]:
        return [await solve(index) for index in range(80 if SOAK else 25)]

    assert all(asyncio.run(all_of_them()))


@pytest.mark.parametrize("maker", [*ONE_TABLE_QUESTIONS, *ADVANCED_QUESTIONS], ids=lambda maker: maker.__name__)
def test_every_generator_gives_answerable_questions(maker: Any) -> None:
    rng, found = random.Random(0), 0
    for schema in SCHEMAS.values():
        for _ in range(5):
            question = maker(rng, schema)
            with closing(make_database(schema, rng)) as connection:
                found += bool(connection.execute(question.query).fetchall())
            assert question.ordered == has_order_by(question.query)
            assert (" first" in question.text) == question.ordered
    assert found >= 15


def test_questions_cover_the_promised_sql() -> None:
    rng = random.Random(0)
    queries = " ".join(maker(rng, SCHEMAS["shop"]).query for maker in QUESTION_GENERATORS["full"] for _ in range(20))
    for word in ("WHERE", "COUNT", "JOIN", "GROUP BY", "ORDER BY", "LIMIT", "HAVING", "DISTINCT", "IS NULL", "(SELECT"):
        assert word in queries


def test_prompt_shows_the_schema_of_the_database() -> None:
    async def opening() -> str:
        return (await make().start()).messages[1].content

    text = asyncio.run(opening())
    assert text.startswith("CREATE TABLE ") and text == asyncio.run(opening()), "equal for all members of a group"
    for schema in (*SCHEMAS.values(), TINY):
        with closing(make_database(schema, random.Random(1))) as connection:
            made = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")]
        assert made == [table.create_statement for table in schema.tables]


def test_trial_query_shows_its_result_or_error() -> None:
    call = '<tool_call>{"name": "sql", "arguments": {"query": "%s"}}</tool_call>'
    said = [call % query for query in ("SELECT 6 * 7 AS n", "SELECT nonsense", "DELETE FROM x")]
    results, _ = play([*said, answered("GOLD")])
    assert text_of(results[0]) == "n\n42" and "no such column: nonsense" in text_of(results[1])
    assert [each.over for each in results] == [False, False, False, True] and results[3].success
    assert sum(each.reward for each in results) == 1.0


def test_failing_answer_may_be_corrected_and_wrong_one_ends() -> None:
    results, _ = play([answered("SELEC"), answered("SELECT x FROM nowhere"), answered("GOLD")])
    assert [each.over for each in results] == [False, False, True] and results[2].success
    assert "syntax error" in text_of(results[0]) and "no such table: nowhere" in text_of(results[1])
    assert not results[0].invalid and results[0].reward == 0
    (wrong,), _ = play([answered("SELECT 'no such thing'")])
    assert wrong.terminated and not wrong.success and wrong.reward == 0


def test_episode_ends_after_five_failing_answers() -> None:
    results, _ = play([answered("SELEC")] * 5)
    assert [each.over for each in results] == [False] * 4 + [True]
    assert results[-1].truncated and not results[-1].success


def test_concatenation_operator_is_not_an_action_separator() -> None:
    results, env = play([answered("SELECT 'a' || 'b' || x")])
    assert results[0].info["actions"] == ["SELECT 'a' || 'b' || x"] and "no such column: x" in text_of(results[0])
    doubled = "SELECT '' || q.one FROM (SELECT 'x' || 'y' AS one) q"
    assert run_query(env.shown[0], doubled, LIMITS).rows == (("xy",),)


def literal(value: Any) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("params", [{}, TINY_PARAMS], ids=str)
def test_query_right_only_on_the_shown_database_fails(params: dict[str, Any]) -> None:
    """The query returns the expected rows as constants, in the right order."""
    for index in range(25):
        _, env = play([], index, **params)
        wanted = env.shown[1]
        lines = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in wanted.rows)
        query = f"SELECT * FROM (VALUES {lines})"
        assert equal_results(run_query(env.shown[0], query, LIMITS), wanted, env.question.ordered)
        (result,), _ = play([answered(query)], index, **params)
        assert result.over and not result.success, query


def test_equivalent_query_is_right() -> None:
    for index in range(6):
        wrapped = "WITH answer AS (GOLD) SELECT * FROM answer;"
        for query in (wrapped, "```sql\nGOLD\n```", "So:\n```SQLite\nGOLD;\n```", "  GOLD  ", "/* why not */ GOLD"):
            (result,), _ = play([answered(query)], index)
            assert result.success, query


def test_row_order_counts_only_if_asked_for() -> None:
    seen = set()
    for index in range(60):
        _, env = play([], index)
        if not env.question.ordered or len(env.shown[1].rows) < 2:
            continue
        (result,), _ = play([answered("SELECT *, row_number() OVER () FROM (GOLD)")], index)
        assert not result.success, "one column more"
        turned = f"SELECT * FROM ({env.question.query}) ORDER BY 2, 1 DESC"
        if "DESC" in env.question.query:
            (result,), _ = play([answered(turned)], index)
            seen.add(result.success)
    assert seen == {False}


def begun(level: str, seed: int) -> TextToSql:
    env = TextToSql({"level": level})
    env.reset(random.Random(seed))
    return env


def only_on_hidden(env: TextToSql, query: str) -> str:
    """The reference query on the shown database, but `query` on any other."""
    first = env.schema.tables[0]
    seen = run_query(env.shown[0], f"SELECT group_concat({first.label.name}) FROM {first.name}", LIMITS).rows[0][0]
    here = f"(SELECT group_concat({first.label.name}) FROM {first.name}) = '{seen}'"
    return f"SELECT * FROM ({env.question.query}) WHERE CASE WHEN {here} THEN 1 ELSE {query} END"


BREAKING = ("json('{' || (SELECT group_concat(name) FROM sqlite_master))", "abs(-9223372036854775807 - 1)")


@pytest.mark.parametrize("breaking", BREAKING)
def test_errors_of_the_hidden_database_are_not_shown(breaking: str) -> None:
    env = begun("easy", 3)
    query = only_on_hidden(env, breaking)
    assert equal_results(run_query(env.shown[0], query, LIMITS), env.shown[1], env.question.ordered)
    with pytest.raises(ToolError):
        run_query(env.hidden[0], query, LIMITS)
    outcome = env.step(query)
    assert outcome.over and not outcome.success and outcome.text == "Wrong." and outcome.reward == 0


def test_endless_query_is_an_error_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    run, let_go = sql_query._run, threading.Event()

    def hang(place: Any, query: str, limits: SqlLimits) -> QueryResult:
        if query.startswith("HANG"):
            assert let_go.wait(600)
        return run(place, query, limits)

    monkeypatch.setattr(sql_query, "_run", hang)
    monkeypatch.setattr(sql_query, "LATE_S", 0.1)
    monkeypatch.setattr("turnwise.envs.text_to_sql.env.LIMITS", SqlLimits(timeout_s=0.1))
    call = '<tool_call>{"name": "sql", "arguments": {"query": "HANG"}}</tool_call>'
    results, _ = play([answered("HANG"), call])
    assert not let_go.is_set()
    let_go.set()
    assert [text_of(result) for result in results] == ["The query takes too long: make it simpler."] * 2
    assert not any(result.over or result.reward for result in results)


@pytest.mark.parametrize("level", ["tiny", "easy", "full"])
def test_splits_share_no_question(level: str) -> None:
    count, questions = 100 if SOAK else 20, dict[Split, set[str]](train=set(), validation=set(), test=set())
    for split, found in questions.items():
        for index in range(count):
            runner = make(index, split, level=level)
            asyncio.run(runner.start())
            found.add(runner.env.state_key())
    train, validation, test = questions.values()
    assert not (train & validation or train & test or validation & test)
    assert len(train) >= (0.75 if level == "tiny" else 0.875) * count


def test_schemas_can_be_held_out() -> None:
    held = ["music", "school"]
    names: dict[Split, set[str]] = {"train": set(), "validation": set(), "test": set()}
    for split, found in names.items():
        for index in range(30):
            runner = make(index, split, held_out=held)
            asyncio.run(runner.start())
            found.add(runner.env.schema.name)
    assert names["test"] == set(held)
    assert names["train"] == names["validation"] == set(SCHEMAS) - set(held)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"held_out": list(SCHEMAS)}, "leave one for training"),
        ({"held_out": ["music"], "level": "tiny"}, "cannot be held out"),
        ({"held_out": ["zoo"]}, "held_out"),
        ({"level": "huge"}, "level"),
        ({"style": "python"}, "style"),
    ],
)
def test_invalid_parameters_are_rejected(params: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        load_spec(NAME).check_params(params)
    assert "\n" not in str(caught.value)


def test_databases_are_shared_by_a_group_and_differ_between_tasks() -> None:
    images = set()
    for index in range(20):
        runner, twin = make(index, level="tiny"), make(index, level="tiny", member=3)
        asyncio.run(runner.start())
        asyncio.run(twin.start())
        assert runner.env.shown == twin.env.shown and runner.env.hidden == twin.env.hidden
        assert runner.env.shown[0] != runner.env.hidden[0]
        images |= {runner.env.shown[0], runner.env.hidden[0]}
    assert len(images) == 40


HOSTILE = (
    "ATTACH 'x.db' AS y",
    "SELECT load_extension('x')",
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
    "SELECT randomblob(1000000000)",
    "PRAGMA writable_schema = 1",
    "GOLD; DROP TABLE orders",
    "\0",
    "<tool_call>",
    "SELECT '<|im_end|>' || '</answer>",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_answer_gets_an_error_and_no_reward(text: str) -> None:
    results, env = play([answered(text)] * 2)
    assert not any(result.success or result.reward for result in results)
    with closing(make_database(env.schema, random.Random(0))) as connection:
        assert len(connection.serialize()) == len(env.shown[0]), "nothing was added to it"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=40) | st.sampled_from(HOSTILE).map(answered), min_size=1, max_size=5))
def test_no_answer_raises(texts: list[str]) -> None:
    async def run() -> None:
        runner = make(1, **TINY_PARAMS)
        await runner.start()
        for text in texts:
            if (await runner.step(assistant(text))).over:
                break
        await runner.close()

    asyncio.run(run())


@pytest.mark.parametrize("params", [{}, TINY_PARAMS], ids=str)
def test_random_play_is_legal_and_rarely_right(params: dict[str, Any]) -> None:
    async def run(index: int) -> bool:
        runner, rng = make(index, **params), random.Random(index)
        await runner.start()
        while True:
            result = await runner.step(assistant(runner.env.random_answer(rng)))
            assert not result.invalid
            if result.over:
                await runner.close()
                return result.success

    async def all_of_them() -> int:
        return sum([await run(index) for index in range(count)])

    count = 200 if SOAK else 40
    assert asyncio.run(all_of_them()) <= 0.15 * count


def test_prompt_of_level_tiny_is_short() -> None:
    runner = make(0, **TINY_PARAMS)
    opening = asyncio.run(runner.start())
    assert sum(len(message.content) for message in opening.messages) < 300
    assert len(runner.env.question.query) < 40


def test_solver_answers_after_one_trial() -> None:
    call = '<tool_call>{"name": "sql", "arguments": {"query": "SELECT 1"}}</tool_call>'
    for said in ([call] * 4, [answered("SELEC")] * 4):
        _, env = play(said)
        assert env.solve() == [env.question.query]
    _, env = play([])
    assert "<tool_call>" in env.solve()[0]
