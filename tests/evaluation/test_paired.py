import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.evaluation.compare import (
    agresti_min_interval,
    bootstrap_interval,
    holm_correction,
    mcnemar_test,
    sign_flip_test,
)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        (1, 9, 22 / 1024),  # 2 * (1 + 10) / 2^10
        (0, 5, 2 / 32),
        (3, 3, 1.0),
        (0, 0, 1.0),
        (2, 8, 112 / 1024),  # 2 * (1 + 10 + 45) / 2^10
    ],
)
def test_mcnemar_matches_hand_computed_values(only_first: int, only_second: int, p: float) -> None:
    assert mcnemar_test(only_first, only_second) == pytest.approx(p)
    assert mcnemar_test(only_second, only_first) == pytest.approx(p)


def test_mcnemar_matches_a_textbook_example() -> None:
    """Approval of the prime minister (Agresti, Categorical Data Analysis): 150 and 86 changed their mind.

    The book's z is (86 - 150) / sqrt(236) = -4.17, which has p = 3.1e-5; the exact one is a little larger.
    """
    assert math.erfc(4.166 / math.sqrt(2)) == pytest.approx(3.1e-5, rel=0.01)
    assert 3.1e-5 < mcnemar_test(150, 86) < 4.5e-5


def test_matched_interval_matches_a_textbook_example() -> None:
    """The same table: a change of -0.04 with standard error 0.0095, so -0.06 to -0.02."""
    low, high = agresti_min_interval(150, 86, 1600)
    assert (low, high) == pytest.approx((-0.0587, -0.0212), abs=3e-4)
    with pytest.raises(ValueError):
        agresti_min_interval(3, 3, 5)


def test_matched_interval_is_not_empty_if_no_pair_differs() -> None:
    low, high = agresti_min_interval(0, 0, 10)
    assert (low, high) == pytest.approx((-1.959964 / 12, 1.959964 / 12), abs=1e-6)


@given(a=st.integers(0, 50), b=st.integers(0, 50), same=st.integers(0, 100))
def test_matched_interval_is_mirrored_when_agents_are_swapped(a: int, b: int, same: int) -> None:
    low, high = agresti_min_interval(a, b, a + b + same)
    assert -1 <= low <= high <= 1
    assert agresti_min_interval(b, a, a + b + same) == pytest.approx((-high, -low))
    assert low <= (b - a) / (a + b + same + 2) <= high


@given(differences=st.lists(st.integers(-4, 4), min_size=1, max_size=7))
def test_sign_flip_test_enumerates_all_signs(differences: list[int]) -> None:
    ways = list(product((-1, 1), repeat=len(differences)))
    sums = [sum(sign * value for sign, value in zip(way, differences, strict=True)) for way in ways]
    expected = sum(abs(total) >= abs(sum(differences)) for total in sums) / len(ways)
    assert sign_flip_test([float(value) for value in differences]) == pytest.approx(expected)


@given(a=st.integers(0, 8), b=st.integers(0, 8), same=st.integers(0, 20))
def test_sign_flip_test_equals_mcnemar_for_single_tries(a: int, b: int, same: int) -> None:
    assert sign_flip_test([-1.0] * a + [1.0] * b + [0.0] * same) == pytest.approx(mcnemar_test(a, b))


@pytest.mark.parametrize(("a", "b"), [(10, 30), (20, 25), (25, 25), (0, 40)])
def test_sampled_sign_flip_test_approximates_the_exact_one(a: int, b: int) -> None:
    found, exact = sign_flip_test([-1.0] * a + [1.0] * b), mcnemar_test(a, b)
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000) + 1e-4)
    assert found == sign_flip_test([-1.0] * a + [1.0] * b), "seeded"
    assert found > 0, "the one that was seen is among the draws"


def test_sign_flip_test_finds_no_evidence_in_cancelling_differences() -> None:
    assert sign_flip_test([0.1, 0.2, -0.3]) == 1.0
    assert sign_flip_test([0.0] * 5) == sign_flip_test([]) == 1.0


def test_bootstrap_interval_approximates_the_normal_interval() -> None:
    values = [math.sin(number * 12.9898) for number in range(400)]
    mean = sum(values) / 400
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / 400 / 400)
    low, high = bootstrap_interval(values)
    assert (low, high) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.1 * error)
    assert (low, high) == bootstrap_interval(values), "seeded"
    narrow = bootstrap_interval(values, confidence=0.5)
    assert low < narrow[0] < mean < narrow[1] < high


def test_bootstrap_rejects_empty_input() -> None:
    with pytest.raises(ValueError, match="no differences"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="confidence"):
        bootstrap_interval([1.0], confidence=1.0)


def test_holm_matches_hand_computed_values() -> None:
    assert holm_correction([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm_correction([0.5, 0.6]) == [1.0, 1.0]
    assert holm_correction([0.2]) == [0.2]
    assert holm_correction([]) == []


@given(ps=st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_keeps_the_order_and_never_lowers_p(ps: list[float]) -> None:
    raised = holm_correction(ps)
    assert all(low <= high <= 1 for low, high in zip(ps, raised, strict=True))
    order = sorted(range(len(ps)), key=lambda index: ps[index])
    assert [raised[index] for index in order] == sorted(raised)
    assert max(raised) <= min(1.0, len(ps) * max(ps)) + 1e-12
