from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.evaluation.statistics import pass_at_k, wilson_interval, wilson_interval_by_task


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # by hand with z = 1.959964: 8/10: (0.8 + 0.192073 -+ 1.959964 * sqrt(0.016 + 0.009604)) / 1.384146
        (8, 10, 0.490162, 0.943318),
        (5, 10, 0.236593, 0.763407),
        (0, 10, 0.0, 0.277533),  # z^2 / (n + z^2)
        (10, 10, 0.722467, 1.0),
        (210, 256, 0.768656, 0.862498),
    ],
)
def test_wilson_matches_hand_computed_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes / n, n) == pytest.approx((low, high), abs=2e-6)


def test_wilson_of_no_trials_is_zero_to_one() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_wilson_at_another_confidence() -> None:
    assert wilson_interval(0.5, 10, confidence=0.6826894921) == pytest.approx((0.349245, 0.650755), abs=2e-6)  # z = 1


@given(n=st.integers(1, 2000), data=st.data())
def test_wilson_bounds_solve_their_equation_and_contain_the_rate(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    rate = successes / n
    low, high = wilson_interval(rate, n)
    assert 0 <= low <= rate <= high <= 1
    for end in (low, high):
        z_squared = 1.959963984540054**2
        assert (rate - end) ** 2 * n == pytest.approx(z_squared * end * (1 - end), abs=1e-9)
    assert wilson_interval(1 - rate, n) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_wilson_rejects_a_confidence_outside_its_range(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(0.5, 2, confidence)


@given(n=st.integers(1, 8), data=st.data())
def test_pass_at_k_is_the_share_of_k_subsets_with_a_success(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


def test_pass_at_k_of_many_tries_stays_exact() -> None:
    assert pass_at_k(1000, 1, 100) == pytest.approx(0.1)
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_pass_at_k_rejects_k_above_the_number_of_tries(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=60))
def test_interval_with_one_try_per_task_is_wilson(outcomes: list[bool]) -> None:
    rates = [float(each) for each in outcomes]
    assert wilson_interval_by_task(rates, len(rates)) == pytest.approx(
        wilson_interval(sum(outcomes) / len(outcomes), len(outcomes))
    )


def test_interval_counts_identical_tries_as_one() -> None:
    rates = [1.0, 0.0, 1.0, 0.0, 0.0]
    assert wilson_interval_by_task(rates, 5 * 8) == pytest.approx(wilson_interval(0.4, 5))
    assert wilson_interval_by_task([1.0] * 5, 5 * 8) == wilson_interval(1.0, 5), (
        "without spread there is nothing to be more sure by"
    )


def test_interval_counts_independent_tries_in_full() -> None:
    assert wilson_interval_by_task([0.5] * 10, 40) == wilson_interval(0.5, 10), "no spread at all: the careful end"
    rates = [0.25, 0.5, 0.75, 0.5] * 5  # variance 1/32: as of 8 fair tries a task, of which there were only 4
    assert wilson_interval_by_task(rates, 80) == pytest.approx(wilson_interval(0.5, 80))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_effective_sample_size_is_between_tasks_and_episodes(counts: list[int]) -> None:
    rates = [count / 4 for count in counts]
    rate, n = sum(rates) / len(rates), len(rates)
    low, high = wilson_interval_by_task(rates, 4 * n)
    careful, bold = wilson_interval(rate, n), wilson_interval(rate, 4 * n)
    assert careful[0] - 1e-12 <= low <= bold[0] + 1e-12
    assert bold[1] - 1e-12 <= high <= careful[1] + 1e-12


def test_interval_of_no_tasks_is_zero_to_one() -> None:
    assert wilson_interval_by_task([], 0) == (0.0, 1.0)
