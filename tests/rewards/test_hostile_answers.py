"""No answer produces anything but a score: what it makes our code raise is the answer's own failure."""

import asyncio
import logging
import math
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings

from math_answers_for_tests import HASTY_WORKER
from nasty_answers_for_tests import ANSWERS, NASTY
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage, RewardFailure, UserError
from turnwise.core.messages import assistant, user
from turnwise.envs.adapters.reasoning_gym_answers import is_formula
from turnwise.rewards import math_verifier
from turnwise.rewards.factory import REWARD_TYPES, build_rubric
from turnwise.rewards.judge.prompts import AGENT, UnreadableVerdict, absolute_prompt, read_score
from turnwise.rewards.math_answers import SymbolicMath
from turnwise.rewards.rubric import BuiltInReward, Submission
from turnwise.rewards.scoring import score_submission
from turnwise.rewards.services import RewardServices
from turnwise.rewards.text_answers import LengthPenalty
from turnwise.rewards.unit_tests import ExpressionResult, UnitTests, extract_code
from turnwise.sandbox.types import SandboxUnavailable
from work_for_tests import hang_guard

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
MATH = ["7", "-3/4", "1/3", "0.333333", "sqrt(2)", "2 pi", "x^2 + 1", "sqrt(x)/3", "(1, 2)", r"\frac{1}{2}", "no sum"]
LATEX = r"\{1, \sqrt{2}, \sin(x)\}"
"""A reference that math-verify compares, if it is installed."""
SERVICES, PLAIN = RewardServices(), RewardServices()
PLAIN.math_verifier.is_installed = False
IN_PROCESS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"use": "math"}, {"answer": reference}) for reference in MATH),
    ({"use": "math", "close": 0.1}, {"answer": MATH}),
    ({"use": "math"}, {"answer": LATEX}),
    ({"use": "exact_match"}, {"answer": ["1,234.5", "The \ud800"]}),
    ({"use": "f1", "precision": 0.5}, {"answer": ["a b", ""]}),
    ({"use": "length", "soft": 1, "hard": 9}, {}),
    ({"use": "length", "soft": 0, "hard": 9, "unit": "characters", "of": "answer"}, {}),
    ({"use": "repetition", "n": 3}, {}),
    ({"use": "repetition", "n": 2, "unit": "characters", "of": "answer"}, {}),
]
"""Rewards with a row that each reads. `regex` waits for a thread, `sql` for another, `unit_tests` for a sandbox."""


def score(table: dict[str, Any], row: dict[str, Any], answer: str) -> float:
    (value,) = asyncio.run(_scored(table, row, [answer]))
    return value


async def _scored(table: dict[str, Any], row: dict[str, Any], answers: list[str]) -> list[float]:
    """Score answers. math-verify, which uses all its time on most of them, compares with two references only."""
    verified = SOAK > 1 or row.get("answer") in (MATH[0], LATEX)
    rubric = build_rubric([table], lambda given: pytest.fail(given), SERVICES if verified else PLAIN)

    async def scored(answer: str) -> float:
        messages = (user("?"), assistant(answer))
        submission = Submission(question="?", answer=answer, row=row, messages=messages)
        return (await score_submission(rubric, submission)).reward

    return list(await asyncio.gather(*map(scored, answers)))


@pytest.fixture(autouse=True, scope="module")
def closed_services() -> Any:
    """Give math-verify little time for an answer: nearly all of the nasty ones that reach it use it up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(math_verifier, "WORKER", HASTY_WORKER.format(0.1))
        yield
        asyncio.run(SERVICES.close())
        asyncio.run(PLAIN.close())


def check(values: list[float]) -> None:
    assert all(isinstance(value, float) and math.isfinite(value) and -1 <= value <= 1 for value in values)


@pytest.fixture(autouse=True)
def no_warning(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Any:
    """The boundary is the last resort: an answer that gets there shows a defect of the part."""
    yield
    if "boundary" not in request.node.name:
        assert not [record for record in caplog.records if "Please report this" in record.message]


@pytest.mark.parametrize(("table", "row"), IN_PROCESS, ids=lambda each: str(each)[:50])
def test_rewards_score_hostile_answers(table: dict[str, Any], row: dict[str, Any]) -> None:
    check(asyncio.run(_scored(table, row, list(NASTY))))


@settings(max_examples=15 if SOAK == 1 else 60 * SOAK, deadline=None)
@given(ANSWERS)
def test_rewards_score_any_text(answer: str) -> None:
    for table, row in IN_PROCESS:
        check([score(table, row, answer)])


@settings(max_examples=30, deadline=None)
@given(ANSWERS)
def test_regex_scores_any_text(answer: str) -> None:
    check([score({"use": "regex", "pattern": r"^\s*(\w+[ ,]?)+$"}, {}, answer)])


@pytest.fixture
def database(tmp_path: Path) -> str:
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        connection.executescript("create table t (a, b); insert into t values (1, 'x'), (2.5, null), (x'ff', 'y');")
        connection.execute("insert into t values (1e999, cast(x'ff' as text))")
        connection.commit()
    return str(tmp_path / "d.db")


def test_sql_scores_hostile_queries(database: str) -> None:
    row = {"sql": "select a, b from t", "database": database}
    queries = [*NASTY, *(f"SELECT {text}" for text in NASTY), "select b, a from t", "select 1e999, a from t"]
    check(asyncio.run(_scored({"use": "sql", "timeout_s": 0.5}, row, queries)))


TESTS: list[Any] = [["assert f(1) == 2", "assert f(2) == {1: 2}"], [{"input": [1], "output": {"1": [2]}}]]


@pytest.mark.parametrize("tests", TESTS, ids=["asserts", "pairs"])
def test_unit_tests_score_hostile_code(tests: Any, optional_part: Callable[..., NoReturn]) -> None:
    answers = [text for text in NASTY if SOAK > 1 or tests is TESTS[0] or re.search("def|class|exit|```|raise", text)]
    try:
        check(asyncio.run(_scored({"use": "unit_tests", "timeout_s": 2.0}, {"tests": tests}, answers)))
    except SandboxUnavailable as error:
        optional_part(str(error))


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_expression_result_compares_any_printed_text(text: str) -> None:
    for wanted in (1, {"1": [2]}, [[1]], "x", None, float("nan")):
        for as_json in (False, True):
            assert ExpressionResult(True, text).is_value(wanted, same_type=False, as_json=as_json) in (True, False)


@settings(deadline=None)
@given(ANSWERS)
def test_judge_prompt_accepts_any_text(answer: str) -> None:
    judge = REWARD_TYPES["judge"](model="m", rubric="r")
    messages = absolute_prompt(((AGENT, answer),), answer, answer, judge)
    assert "".join(message.content for message in messages).encode()


def test_extract_code_takes_linear_time() -> None:
    """In two million characters: were it by the square, it would take hours."""
    length = 2_000_000
    texts = ["```" + " " * length, "```python" + "\t" * length, "```" * (length // 3), "``` \n" * (length // 5)]
    with hang_guard():
        assert [extract_code(text)[-1:] for text in texts] == [" ", "\t", "`", ""]
        assert extract_code("```" + " " * length + "py" + " " * length + "\nx\n```") == "x\n"
        with pytest.raises(UnreadableVerdict):
            read_score("```" + "\n" * length + "x", (0, 1))
        assert read_score('```json\n{"score": 1}\n```', (0, 1)) == 1
        assert not is_formula("a" * length + "!") and is_formula("sin(x) + x**2*y")


class Breaks(BuiltInReward):
    """A part with a defect."""

    async def score(self, submission: Submission) -> float:
        raise submission.row["error"]


class Costs(Breaks):
    """A cost with a defect."""

    worst = -1.0


DEFECTS = [
    OverflowError("large"),
    RecursionError("deep"),
    MemoryError(),
    TypeError("unhashable"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"),
    ValueError("4300 digits"),
    IndexError("none"),
    ExceptionGroup("several", [KeyError("a")]),
]


@pytest.mark.parametrize("error", DEFECTS, ids=lambda error: type(error).__name__)
def test_built_in_reward_logs_errors_and_gives_the_worst_score(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    submission = Submission(question="?", answer="7" * 999, row={"error": error})
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(Breaks()(submission)) == 0.0 and asyncio.run(Costs()(submission)) == -1.0
    (record, _) = caplog.records
    assert f"Breaks raised {type(error).__name__}" in record.message and record.exc_info
    assert len(record.message) < 400


@pytest.mark.parametrize(
    "error", [UserError("u"), Outage("o"), EnvironmentFailure("e"), InfrastructureFailure("i"), RewardFailure("r")]
)
def test_built_in_reward_passes_failures_not_caused_by_answers(error: Exception) -> None:
    with pytest.raises(type(error)):
        asyncio.run(Breaks()(Submission(question="?", answer="", row={"error": error})))


def test_all_reward_types_but_judges_are_built_in_rewards() -> None:
    assert {name for name, part in REWARD_TYPES.items() if not issubclass(part, BuiltInReward)} == {"judge"}
    for part in (SymbolicMath, UnitTests, LengthPenalty):
        assert "__call__" not in vars(part), "score is what a part defines"
    assert REWARD_TYPES["length"](soft=1, hard=2).worst == REWARD_TYPES["repetition"]().worst == -1.0


def test_built_in_reward_passes_os_errors() -> None:
    class Disk(BuiltInReward):
        async def score(self, submission: Submission) -> float:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        asyncio.run(Disk()(Submission(question="?", answer="", row={})))
