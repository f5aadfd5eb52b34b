"""Filters over groups: scores, selections by hand, and what holds for all of them."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from losses_for_tests import changed_fields

from turnwise.algos.filters import FILTERS, RATE_SCALES, SCORES, FilterParams

every_filter = pytest.mark.parametrize("name", FILTERS)
distinct = st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True)


def kept(
    name: str, scores: list[float], value: float = 0.5, *, largest: bool = True, keep_zero: bool = True
) -> list[int]:
    """Return the indices of the groups that a filter keeps."""
    params = FilterParams(filter_value=value, filter_largest=largest, filter_keep_zero=keep_zero)
    chosen = FILTERS[name].compute(torch.tensor(scores, dtype=torch.float64), params)
    assert chosen.shape == (len(scores),) and chosen.dtype == torch.bool
    return chosen.nonzero()[:, 0].tolist()


SCORED = [3.0, 0.0, 5.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "params", "groups"),
    [
        ("none", {}, [0, 1, 2, 3, 4]),
        ("top_p", {"value": 0.5}, [2]),  # 5 of 10 reach 5 - 0.01
        ("top_p", {"value": 0.51}, [0, 2]),
        ("top_p", {"value": 0.801}, [0, 2]),  # 8 fall short of 8.01 by no more than the slack
        ("top_p", {"value": 0.81}, [0, 2, 3]),
        ("top_p", {"value": 1.0}, [0, 2, 3, 4]),  # never the 0
        ("top_p", {"value": 0.3, "largest": False}, [0, 3, 4]),  # from below: 1, 1, 3
        ("top_p_softmax", {"value": 0.5}, [2]),
        ("top_p_softmax", {"value": 0.9}, [0, 2]),
        ("top_p_softmax", {"value": 1.0}, [0, 1, 2, 3, 4]),
        ("top_p_softmax", {"value": 1.0, "keep_zero": False}, [0, 2, 3, 4]),
        ("top_p_softmax", {"value": 0.1, "largest": False}, [1]),
        ("top_k", {"value": 0.4}, [0, 2]),
        ("top_k", {"value": 0.01}, [2]),  # at least one
        ("top_k", {"value": 0.4, "largest": False}, [1, 3]),
        ("top_k", {"value": 0.4, "largest": False, "keep_zero": False}, [3, 4]),
        ("top_count", {"value": 3}, [0, 2, 3]),
        ("top_count", {"value": 0}, []),
        ("top_count", {"value": 99, "keep_zero": False}, [0, 2, 3, 4]),
        ("quarter", {}, [2]),
        ("quarter", {"largest": False}, [1]),
        ("absolute", {"value": 3.0}, [0, 2]),
        ("absolute", {"value": 1.0, "largest": False}, [1, 3, 4]),
        ("absolute", {"value": 1.0, "largest": False, "keep_zero": False}, [3, 4]),
        ("absolute", {"value": 5.5}, []),
        ("min_p", {"value": 0.6}, [0, 2]),
        ("min_p", {"value": 0.61}, [2]),
        ("min_p", {"value": 0.5, "largest": False, "keep_zero": False}, [3, 4]),
        ("min_p", {"value": 0.3, "largest": False, "keep_zero": False}, [0, 3, 4]),
    ],
)
def test_selections_by_hand(name: str, params: dict[str, float], groups: list[int]) -> None:
    assert kept(name, SCORED, **params) == groups


@every_filter
def test_filters_may_drop_all_groups_with_score_zero(name: str) -> None:
    left = kept(name, [0.0, 0.0, 0.0], keep_zero=False)
    assert left == ([0, 1, 2] if name == "none" else [])


def test_top_p_never_keeps_groups_with_score_zero() -> None:
    assert kept("top_p", [0.0, 0.0], 1.0) == []
    assert kept("top_p", [0.0, 1e-3], 0.9) == [1], "less than the slack in all: still the best"


@every_filter
def test_filters_of_no_groups_return_none(name: str) -> None:
    assert kept(name, []) == []


def test_top_p_softmax_of_one_keeps_all_groups() -> None:
    assert kept("top_p_softmax", [1000.0, 1.0], 1.0) == [0, 1]
    assert kept("top_p_softmax", [1000.0, 1.0], 0.99) == [0]


def test_top_k_share_is_exact_despite_rounding() -> None:
    assert len(kept("top_k", list(range(100)), 0.29)) == 29


@every_filter
@pytest.mark.parametrize("largest", [True, False])
@given(scores=distinct, random=st.randoms(use_true_random=False), value=st.floats(0.05, 1))
def test_filters_do_not_depend_on_the_order_of_groups(
    name: str, largest: bool, scores: list[int], random: Random, value: float
) -> None:
    chosen = {scores[i] for i in kept(name, list(map(float, scores)), value, largest=largest)}
    random.shuffle(scores)
    assert {scores[i] for i in kept(name, list(map(float, scores)), value, largest=largest)} == chosen


@pytest.mark.parametrize("name", [name for name in FILTERS if name != "none"])
@pytest.mark.parametrize("largest", [True, False])
@given(scores=distinct, value=st.floats(0.05, 1))
def test_filters_keep_the_best_groups(name: str, largest: bool, scores: list[int], value: float) -> None:
    scores = [score + 1 for score in scores]  # top_p never keeps a 0
    chosen = kept(name, list(map(float, scores)), value, largest=largest)
    inside = [scores[i] for i in chosen]
    outside = [score for i, score in enumerate(scores) if i not in chosen]
    if inside and outside:
        assert min(inside) > max(outside) if largest else max(inside) < min(outside)


@every_filter
def test_filter_reads_the_parameters_it_lists(name: str) -> None:
    """Each changed in turn, on scores where it matters for this filter."""
    others = {"filter_value": 0.9, "filter_largest": False, "filter_keep_zero": False}
    cases = [([3.0, 0.0, 5.0, 1.0, 1.5], 0.5), ([0.0, 0.0, 0.0], 1.0), ([5.0, 4.0, 3.0, 2.0], 2.0), ([0.0] * 3, 0.0)]
    read = set()
    for scores, value in cases:
        base = FilterParams(filter_value=value)
        for field, params in changed_fields(base, others).items():
            before, after = (FILTERS[name].compute(torch.tensor(scores), each) for each in (base, params))
            if not torch.equal(before, after):
                read.add(field)
    assert read == set(FILTERS[name].reads)


RETURNS = torch.tensor([1.0, 0.0, 0.37, 4.0, 0.37, 2.0, 0.37])
GROUPS = torch.tensor([0, 0, 2, 3, 2, 3, 2])


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("reward_std", [0.5**0.5, 0.0, 0.0, 2**0.5]),  # unbiased; equal rewards are exactly 0; group 1 has nobody
        ("reward", [0.5, 0.0, 0.37, 3.0]),
        ("reward_sum", [1.0, 0.0, 1.11, 6.0]),
    ],
)
def test_scores_of_groups(name: str, scores: list[float]) -> None:
    got = SCORES[name].reduce(RETURNS, GROUPS, 4)
    assert got.tolist() == pytest.approx(scores)
    assert got.dtype == torch.float64
    assert name != "reward_std" or got[2] == 0


def test_group_scores_name_their_quantity() -> None:
    of = {name: score.quantity for name, score in SCORES.items()}
    assert {name for name, column in of.items() if column == "entropy"} == {"entropy", "entropy_std"}
    assert of["length"] == "lengths"
    assert SCORES["entropy_std"].reduce(RETURNS, GROUPS, 4)[3].item() == pytest.approx(2**0.5)
    assert SCORES["entropy"].reduce(RETURNS, GROUPS, 4)[3].item() == 3.0
    assert SCORES["length"].reduce(torch.tensor([2, 4]), torch.tensor([0, 0]), 1).tolist() == [3.0]


def test_reward_std_of_a_group_of_one_is_zero() -> None:
    assert SCORES["reward_std"].reduce(torch.tensor([5.0]), torch.tensor([0]), 1).tolist() == [0.0]


@pytest.mark.parametrize(("name", "scale"), [("none", 1.0), ("share", 0.25), ("root", 0.5)])
def test_rate_scales_are_one_the_kept_share_and_its_root(name: str, scale: float) -> None:
    assert RATE_SCALES.keys() == {"none", "share", "root"}
    assert RATE_SCALES[name](0.25) == scale and RATE_SCALES[name](1.0) == 1.0
