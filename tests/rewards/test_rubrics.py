"""Parts of a rubric, and what a recipe says of them."""

import asyncio
import math
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import EnvironmentFailure, Outage, UserError
from turnwise.core.messages import assistant, user
from turnwise.rewards.factory import REWARD_TYPES, build_rubric
from turnwise.rewards.rubric import Rubric, Submission
from turnwise.rewards.scoring import score_submission
from turnwise.rewards.services import RewardServices
from turnwise.rewards.text_answers import f1, normalise_answer
from turnwise.tools.tool import ToolResult
from work_for_tests import hang_guard


def no_files(given: str) -> Any:
    raise AssertionError(f"nothing is loaded for {given}")


def score(given: Any, answer: str, row: Mapping[str, Any] | None = None, said: tuple[str, ...] = ()) -> float:
    rubric = build_rubric([given], no_files, RewardServices())
    messages = (user("?"), *(assistant(text) for text in said))
    submission = Submission(question="?", answer=answer, row=row or {}, messages=messages if said else ())
    return asyncio.run(score_submission(rubric, submission)).reward


@pytest.mark.parametrize(("success_at", "succeeds"), [(0.5, True), (0.51, False)])
def test_answer_succeeds_from_the_given_score_of_the_first_part(success_at: float, succeeds: bool) -> None:
    async def half(submission: Submission) -> float:
        return 0.5

    async def whole(submission: Submission) -> float:
        return 1.0

    rubric = Rubric(parts={"half": half, "whole": whole}, weights={"half": 1.0, "whole": 1.0})
    scored = asyncio.run(score_submission(rubric, Submission(question="", answer="", row={}), success_at))
    assert scored.success is succeeds


@pytest.mark.parametrize(
    ("use", "answer", "gold", "value"),
    [
        ("exact_match", "The  Eiffel Tower!", "eiffel tower", 1.0),
        ("exact_match", "Eiffel", "Eiffel Tower", 0.0),
        ("exact_match", "42", 42, 1.0),
        ("exact_match", "b", ["a b", "B"], 1.0),
        ("exact_match", "", "x", 0.0),
        ("exact_match", "5", "-5", 0.0),
        ("exact_match", "35", "3.5", 0.0),
        ("exact_match", "12", "1/2", 0.0),
        ("exact_match", "C", "C++", 0.0),
        ("exact_match", "the", "A", 0.0),
        ("exact_match", ".", "A", 0.0),
        ("exact_match", "(a).", "A", 1.0),
        ("exact_match", "$1,234.50.", "1234.50", 1.0),
        ("exact_match", "-5!", "-5", 1.0),
        ("f1", "red 4", "4", 2 / 3),
        ("f1", "the tower of Eiffel", "Eiffel Tower", 2 * 2 / 5),
        ("f1", "Eiffel Tower", ["Louvre", "Eiffel Tower"], 1.0),
        ("f1", "no", "Eiffel Tower", 0.0),
        ("f1", "", "", 1.0),
        ("math", r"\frac{3}{4}", "0.75", 1.0),
        ("math", r"\frac{6}{8}", "3/4", 0.0),
        ("math", "x+1", ["2", "1+x"], 1.0),
        ("math", "x-1", "1+x", 0.0),
    ],
)
def test_text_rewards_compare_with_accepted_answers(use: str, answer: str, gold: Any, value: float) -> None:
    assert score(use, answer, {"answer": gold}) == pytest.approx(value)
    assert score({"use": use, "against": "gold"}, answer, {"gold": gold}) == pytest.approx(value)


def test_f1_can_require_precision() -> None:
    strict = {"use": "f1", "precision": 0.5}
    assert score(strict, "red 4", {"answer": "4"}) == 0.0
    assert score(strict, "Eiffel Tower Paris", {"answer": "Eiffel Tower"}) == pytest.approx(0.8)
    assert score({"use": "f1", "at_least": 0.9}, "Eiffel Tower Paris", {"answer": "Eiffel Tower"}) == 0.0


@given(st.text(), st.text())
def test_f1_is_symmetric_and_1_for_equal_answers(one: str, other: str) -> None:
    assert f1(one, other) == f1(other, one) and 0 <= f1(one, other) <= 1
    assert f1(one, one) == 1 and (
        f1(one, other) < 1 or sorted(normalise_answer(one)) == sorted(normalise_answer(other))
    )


def test_missing_column_error_suggests_the_closest() -> None:
    with pytest.raises(
        UserError, match=r'"answer", which a task row lacks: did you mean "answers"\? \(there are answers\)'
    ):
        score("exact_match", "x", {"answers": "x"})
    with pytest.raises(UserError, match="has no answer"):
        score("exact_match", "x", {"answer": []})


def test_regex_searches_or_matches_the_whole_text() -> None:
    assert score({"use": "regex", "pattern": r"\[\d+\]", "match": "search"}, "as in [12].") == 1.0
    assert score({"use": "regex", "pattern": r"\[\d+\]"}, "as in [12].") == 0.0
    assert score({"use": "regex", "pattern": "cite", "of": "said", "match": "full"}, "no", said=("I cite", "no")) == 0.0
    assert score({"use": "regex", "pattern": "PARIS", "ignore_case": True}, "paris") == 1.0
    assert score({"use": "regex", "pattern": "cite", "of": "said"}, "no", said=("I cite", "no")) == 1.0


def test_regex_times_out_without_blocking_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = REWARD_TYPES["regex"](pattern=r"(?:a|a|aa)+$", match="full", timeout_s=0.1)
    matches, threads = type(part)._matches, list[threading.Thread]()

    def watched(self: Any, text: str) -> bool:
        threads.append(threading.current_thread())
        return matches(self, text)

    monkeypatch.setattr(type(part), "_matches", watched)
    with hang_guard():
        assert asyncio.run(part(Submission(question="", answer="a" * 60 + "b", row={}))) == 0.0
    assert len(threads) == 1 and threads[0] is not threading.main_thread(), "the event loop goes on meanwhile"


@pytest.mark.parametrize(("words", "cost"), [(0, 0.0), (10, 0.0), (15, -0.5), (20, -1.0), (500, -1.0)])
def test_length_penalty_grows_from_soft_to_hard(words: int, cost: float) -> None:
    table = {"use": "length", "soft": 10, "hard": 20}
    assert score({**table, "of": "answer"}, "w " * words) == cost
    assert score(table, "w", said=("w " * words, "w")) == pytest.approx(max(-1.0, min(0.0, (9 - words) / 10)))
    assert score({**table, "unit": "characters", "of": "answer"}, "w" * words) == cost


@pytest.mark.parametrize(
    ("text", "cost"), [("a b c d", 0.0), ("a b a b a b", -(1 - 2 / 5)), ("a " * 101, -0.99), ("a", 0.0), ("", 0.0)]
)
def test_repetition_penalty_is_the_share_of_repeats(text: str, cost: float) -> None:
    assert score({"use": "repetition", "n": 2}, text) == pytest.approx(cost)


def test_repetition_penalty_counts_characters() -> None:
    assert score({"use": "repetition", "n": 3, "unit": "characters"}, "abcabc") == pytest.approx(-(1 - 3 / 4))


@pytest.fixture
def database(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "d.sqlite") as connection:
        connection.executescript("create table t (a, b); insert into t values (1, 'x'), (2, 'y'), (2, 'y');")
    connection.close()
    return str(tmp_path / "d.sqlite")


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("select a, b from t", 1.0),
        ("```sql\nselect a as n, b from t order by a desc;\n```", 1.0),
        ("select distinct a, b from t", 0.0),
        ("select b, a from t", 0.0),
        ("drop table t", 0.0),
        ("nonsense", 0.0),
    ],
)
def test_sql_reward_compares_results(query: str, value: float, database: str) -> None:
    assert score("sql", query, {"sql": "select a, b from t", "database": database}) == value
    assert (
        score({"use": "sql", "database": database, "against": "gold"}, query, {"gold": "select a, b from t"}) == value
    )


def test_sql_reward_compares_row_order_if_the_query_is_ordered(database: str) -> None:
    row = {"sql": "select a from t order by a", "database": database}
    assert score("sql", "select a from t order by a desc", row) == 0.0
    with pytest.raises(EnvironmentFailure, match="the query of a task row fails"):
        score("sql", "select 1", {"sql": "select nothing from t", "database": database})


TABLES: list[tuple[Any, str]] = [
    ("exact_macth", 'No reward "exact_macth": did you mean "exact_match"? (or give FILE.py:function)'),
    ([], "The list of rewards is empty"),
    ([{"weight": 1}], "A reward does not say what it uses"),
    (["f1", "f1"], 'Two rewards are called "f1": rename one of them with name'),
    ([{"use": "f1", "name": "env"}], 'The reward name "env" is reserved'),
    ([{"use": "f1", "name": "format"}], 'The reward name "format" is reserved'),
    ([{"use": "f1", "weight": "much"}], 'The weight of the reward "f1" is not a number'),
    ([{"use": "f1", "weight": True}], 'The weight of the reward "f1" is not a number'),
    ([{"use": "f1", "weight": float("nan")}], 'The weight of the reward "f1" is not a number'),
    ([{"use": "f1", "agianst": "x"}], 'the reward "f1" has no option "agianst": did you mean "against"?'),
    ([{"use": "f1", "weigth": 2}], 'the reward "f1" has no option "weigth": did you mean "weight"?'),
    ([{"use": "f1", "zzz": 2}], ", name, "),
    ([{"use": "regex"}], 'the reward "regex" lacks its option "pattern"'),
    ([{"use": "regex", "pattern": "("}], "the pattern is not a regular expression"),
    ([{"use": "length", "soft": 5, "hard": 5}], "soft must be less than hard"),
    ([{"use": "repetition", "n": 0}], 'the reward "repetition", n: input should be greater than or equal to 1'),
    (
        [{"use": "my.py:f", "scale": 2}],
        'The reward "my.py:f" has no option "scale": functions take only name and weight',
    ),
    ([{"use": "judge", "model": "m", "rubric": "r", "mode": "pairwise"}], "put it into [reward] judges"),
]


@pytest.mark.parametrize(("given", "line"), TABLES, ids=lambda each: str(each)[:40])
def test_build_rubric_explains_mistakes_in_one_line(given: Any, line: str) -> None:
    with pytest.raises(UserError) as error:
        build_rubric(given, no_files, RewardServices())
    assert line in str(error.value) and "\n" not in str(error.value)


def total(rubric: Rubric, submission: Submission) -> tuple[dict[str, float], float]:
    score = asyncio.run(score_submission(rubric, submission))
    return dict(score.parts), score.reward


def test_score_submission_weights_parts() -> None:
    given = [
        {"use": "exact_match", "weight": 2},
        {"use": "f1", "weight": -0.5},
        {"use": "f1", "name": "other", "against": "b", "weight": 0.25},
    ]
    submission = Submission(question="", answer="a tower", row={"answer": "tower", "b": "big tower"})
    values, reward = total(build_rubric(given, no_files, RewardServices()), submission)
    assert values == pytest.approx({"exact_match": 1.0, "f1": 1.0, "other": 2 / 3})
    assert reward == pytest.approx(2 - 0.5 + 0.25 * 2 / 3)


def test_answer_reward_may_be_async_and_run_tools() -> None:
    async def run_tool(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(text=f"{name} {arguments['code']}")

    async def checked(submission: Submission) -> bool:
        assert submission.run_tool is not None
        return (await submission.run_tool("python", {"code": submission.answer})).text == "python 42"

    async def later(answer: str, row: Mapping[str, Any]) -> float:
        return len(answer) * row["factor"]

    functions = {"a.py:checked": checked, "b.py:later": later, "c.py:now": lambda answer, row, more=0: 3}
    given = ["a.py:checked", {"use": "b.py:later", "weight": 0.1}, {"use": "c.py:now", "name": "three"}]
    submission = Submission(question="", answer="42", row={"factor": 5}, run_tool=run_tool)
    values, reward = total(build_rubric(given, functions.__getitem__, RewardServices()), submission)
    assert values == {"checked": 1.0, "later": 10.0, "three": 3.0} and reward == 5.0
    alone = build_rubric("b.py:later", functions.__getitem__, RewardServices())
    assert total(alone, submission) == ({"later": 10.0}, 10.0)


def test_answer_reward_rejects_three_arguments() -> None:
    with pytest.raises(UserError, match=r"write function\(answer, row\) or function\(submission\)"):
        build_rubric("a.py:f", lambda given: lambda a, b, c: 0, RewardServices())


def yields(answer: str, row: Any) -> Any:
    yield 1.0


WRONG_KIND: list[tuple[Any, str]] = [
    (lambda row, answer: 0, r"takes the row first, but the answer comes first: write function\(answer, row\)"),
    (lambda answer: 0, r"takes answer alone, but would be given the whole submission: write function\(answer, row\)"),
    (lambda trajectory: 0, "takes a trajectory: name it in reward.functions"),
    (lambda answer, row, *, factor: 0, "must take one or two arguments"),
    (lambda completions, **columns: [0], r"takes a batch of completions: write function\(answer, row\)"),
    (lambda prompts, completions, **columns: [0], "takes a batch of completions"),
    (yields, "is a generator: return a number instead of yielding"),
    (Submission, "is a class: give a function"),
]


@pytest.mark.parametrize(("function", "message"), WRONG_KIND, ids=[message[:30] for _, message in WRONG_KIND])
def test_answer_reward_rejects_wrong_signatures(function: Any, message: str) -> None:
    with pytest.raises(UserError, match=f'^[Tt]he reward "a.py:f" {message}'):
        build_rubric("a.py:f", lambda given: function, RewardServices())


BROKEN: list[tuple[Any, str]] = [
    (
        lambda row: row["anser"],
        r"raised KeyError: 'anser' at \S+:\d+: .*: did you mean \"answer\"\? \(there are answer, n\)",
    ),
    (lambda row: row["price"], r"raised KeyError: 'price' at \S+:\d+: .*: there are answer, n$"),
    (lambda row: {}["answer"], r"raised KeyError: 'answer' at \S+:\d+: return 0 for answers that it cannot read"),
    (lambda row: int("three"), r"raised ValueError: invalid .* at \S+:\d+: return 0 for answers"),
    (lambda row: None, r"returned None \(is a return missing\?\) \(\S+:\d+\): return a finite number"),
    (lambda row: "1.0", r"returned the text '1.0' \(\S+:\d+\): return a finite number"),
    (lambda row: {"score": 1}, r"returned {'score': 1} \(\S+:\d+\): return a finite number"),
    (lambda row: math.nan, r"returned nan \(\S+:\d+\): return a finite number"),
]


@pytest.mark.parametrize(("does", "message"), BROKEN, ids=[message[:30] for _, message in BROKEN])
def test_answer_reward_error_names_cause_and_line(does: Any, message: str) -> None:
    part = build_rubric("a.py:f", lambda given: lambda answer, row: does(row), RewardServices())
    message = message.replace(r"\S+", r"test_rubrics\.py")
    with pytest.raises(Outage, match=f"^the reward \"a.py:f\", on the answer 'three', {message}"):
        total(part, Submission(question="", answer="three", row={"answer": "3", "n": 1}))


def test_reward_types_are_documented_strict_models() -> None:
    assert set(REWARD_TYPES) == {
        "exact_match", "f1", "math", "unit_tests", "sql", "regex", "length", "repetition", "judge"
    }  # fmt: skip
    for part in REWARD_TYPES.values():
        assert part.__doc__ and part.model_config["frozen"] and part.model_config["extra"] == "forbid"
