"""Elo against values that are known, and rules that hold for all scores."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.evaluation.statistics import MatchScore, expected_score, performance_rating

RATINGS = st.floats(-1000, 1000)


@pytest.mark.parametrize(
    ("lead", "points"), [(0, 0.5), (400, 10 / 11), (-400, 1 / 11), (200, 0.7597), (800, 100 / 101)]
)
def test_expected_score_matches_published_tables(lead: float, points: float) -> None:
    assert expected_score(1500 + lead, 1500) == pytest.approx(points, abs=5e-5)


@pytest.mark.parametrize(("points", "rating"), [(50, 1500), (75, 1690.85), (25, 1309.15), (90, 1881.70), (64, 1599.95)])
def test_performance_rating_against_one_opponent_matches_the_formula(points: float, rating: float) -> None:
    found = performance_rating([MatchScore(opponent=1500, points=points, games=100)], prior_games=0)
    assert found == pytest.approx(rating, abs=0.01)
    assert found == pytest.approx(1500 + 400 * math.log10(points / (100 - points)), abs=1e-3)


def test_performance_rating_combines_several_opponents() -> None:
    both = [MatchScore(opponent=0, points=8, games=10), MatchScore(opponent=200, points=5, games=10)]
    found = performance_rating(both, prior_games=0)
    assert 10 * expected_score(found, 0) + 10 * expected_score(found, 200) == pytest.approx(13)
    assert 200 < found < 400 * math.log10(4) + 1
    mirrored = [MatchScore(opponent=-each.opponent, points=each.games - each.points, games=each.games) for each in both]
    assert performance_rating(mirrored, prior_games=0) == pytest.approx(-found)


def test_performance_rating_is_finite_for_all_wins_or_all_losses() -> None:
    few, many = (performance_rating([MatchScore(opponent=100, points=n, games=n)]) for n in (4, 40))
    assert 100 + 400 * math.log10(4.5 / 0.5) == pytest.approx(few, abs=1e-3)
    assert few < many < 1000
    assert performance_rating([MatchScore(opponent=100, points=0, games=4)]) == pytest.approx(200 - few, abs=1e-3)


@given(st.lists(st.tuples(RATINGS, st.integers(1, 50), st.floats(0, 1)), min_size=1, max_size=5), RATINGS)
def test_performance_rating_shifts_with_opponents_and_rises_with_points(
    played: list[tuple[float, int, float]], shift: float
) -> None:
    scores = [MatchScore(opponent=rating, points=share * games, games=games) for rating, games, share in played]
    found = performance_rating(scores)
    moved = [MatchScore(opponent=each.opponent + shift, points=each.points, games=each.games) for each in scores]
    assert performance_rating(moved) == pytest.approx(found + shift, abs=1e-3)
    better = [MatchScore(opponent=each.opponent, points=each.games, games=each.games) for each in scores]
    assert performance_rating(better) >= found - 1e-3


def test_performance_rating_rejects_impossible_scores_and_no_games() -> None:
    with pytest.raises(ValueError, match="must be between 0 and 4, not 5"):
        MatchScore(opponent=0, points=5, games=4)
    with pytest.raises(ValueError, match="at least one game"):
        performance_rating([])
