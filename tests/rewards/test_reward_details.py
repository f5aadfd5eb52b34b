"""Edge cases of rewards: weights, bounds, repeated words, failing parts."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from episodes_for_tests import group_of, turn_of
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, RewardFailure
from turnwise.rewards.rubric import Rubric, Submission
from turnwise.rewards.scoring import ENV, RewardSet, score_groups, score_submission
from turnwise.rewards.sql_results import equal_results
from turnwise.rewards.text_answers import F1, ExactMatch, f1
from turnwise.rewards.unit_tests import evaluate_expressions, parse_tests
from turnwise.tools.sql.query import QueryResult


def submission(answer: str, /, **row: Any) -> Submission:
    return Submission(question="?", answer=answer, row=row)


def test_score_groups_weights_the_only_reward() -> None:
    group = group_of([[turn_of([3], [4], extends=False, reward=1.0)], [turn_of([3], [5], extends=False, reward=0.5)]])
    rewards = RewardSet(format_penalty=0.0, functions={}, weights={ENV: 2.0})
    (scored,) = asyncio.run(score_groups([group], rewards)).groups
    assert [each.turn_rewards for each in scored.trajectories] == [(2.0,), (1.0,)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_score_submission_rejects_scores_that_are_not_finite(value: float) -> None:
    async def broken(submission: Submission) -> float:
        return value

    with pytest.raises(EnvironmentFailure, match="the reward broken gave"):
        asyncio.run(score_submission(Rubric(parts={"broken": broken}, weights={"broken": 1.0}), submission("x")))


def test_score_submission_reports_unavailable_services() -> None:
    async def gone(submission: Submission) -> float:
        raise InfrastructureFailure("no answer")

    with pytest.raises(RewardFailure, match="the reward gone: no answer"):
        asyncio.run(score_submission(Rubric(parts={"gone": gone}, weights={"gone": 1.0}), submission("x")))


def test_f1_counts_repeated_words_as_often_as_the_reference() -> None:
    assert f1("paris paris paris", "paris") == pytest.approx(0.5)
    assert f1("new new york", "new new york york") == pytest.approx(6 / 7)


def test_f1_at_least_is_inclusive() -> None:
    half = submission("paris rome", answer="paris berlin")
    assert asyncio.run(F1(at_least=0.5)(half)) == pytest.approx(0.5)
    assert asyncio.run(F1(at_least=0.51)(half)) == 0.0


def test_exact_match_accepts_any_reference() -> None:
    assert asyncio.run(ExactMatch()(submission("NYC", answer=["New York", "NYC"]))) == 1.0
    assert asyncio.run(ExactMatch()(submission("Boston", answer=["New York", "NYC"]))) == 0.0


class Said:
    """A session that prints this, whatever it is given."""

    def __init__(self, output: str) -> None:
        self.output = output

    async def run(self, code: str) -> Any:
        return SimpleNamespace(output=self.output)


def test_expressions_that_raise_have_no_value() -> None:
    lines = ['tested:[true, "1"]', 'tested:[false, "1"]']
    given, _ = asyncio.run(evaluate_expressions(Said("\n".join(lines)), "", ["f(1)", "f(2)", "f(3)"]))
    assert [each.is_value(1, same_type=False) for each in given] == [True, False, False]


def test_parse_tests_keeps_inequalities() -> None:
    _, (case,) = parse_tests("assert f(1) != 2", "", "", "tests")
    assert case.inside and case.expected is True and case.expression == "bool(f(1) != 2)"


@pytest.mark.parametrize("ordered", [True, False])
def test_equal_results_rejects_fewer_rows(ordered: bool) -> None:
    one, two = (QueryResult(columns=("n",), rows=((1,), (2,))[:count]) for count in (1, 2))
    assert not equal_results(one, two, ordered) and not equal_results(two, one, ordered)
    assert equal_results(two, two, ordered)
