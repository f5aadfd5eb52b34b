"""Filters over groups: scores, selections by hand, and what holds for all of them."""

from random import Random

import pytest
import torch
from choices_for_tests import choose
from hypothesis import given
from hypothesis import strategies as st

from turnwise.algos.filters import FILTERS, SCORES, Filter, NoFilter, TopCount, TopK, select_groups

NAMES = [name for name, kind in FILTERS.items() if issubclass(kind, Filter)]
every_filter = pytest.mark.parametrize("name", NAMES)
distinct = st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True)


def kept(
    name: str, scores: list[float], value: float = 0.5, *, largest: bool = True, keep_zero: bool = True
) -> list[int]:
    """Return the indices of the groups that a filter keeps."""
    size = {"count": max(1, int(value))} if name == "top_count" else {"value": value}
    chosen = choose(FILTERS, name, largest=largest, keep_zero=keep_zero, **size)
    assert isinstance(chosen, Filter)
    return select_groups(chosen, torch.tensor(scores, dtype=torch.float64)).nonzero()[:, 0].tolist()


SCORED = [3.0, 0.0, 5.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "params", "groups"),
    [
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
    assert kept(name, [0.0, 0.0, 0.0], keep_zero=False) == []


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


@every_filter
@pytest.mark.parametrize("largest", [True, False])
@given(scores=distinct, value=st.floats(0.05, 1))
def test_filters_keep_the_best_groups(name: str, largest: bool, scores: list[int], value: float) -> None:
    scores = [score + 1 for score in scores]  # top_p never keeps a 0
    chosen = kept(name, list(map(float, scores)), value, largest=largest)
    inside = [scores[i] for i in chosen]
    outside = [score for i, score in enumerate(scores) if i not in chosen]
    if inside and outside:
        assert min(inside) > max(outside) if largest else max(inside) < min(outside)


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


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("share", 0.25), ("root", 0.5)])
def test_rate_scales_are_one_the_kept_share_and_its_root(scale: str, factor: float) -> None:
    chosen = TopK(scale=scale)  # type: ignore[arg-type]
    assert chosen.rate_scale(0.25) == factor and chosen.rate_scale(1.0) == 1.0


def test_every_group_score_can_be_chosen() -> None:
    assert all(TopK(by=name).score is score for name, score in SCORES.items())  # type: ignore[arg-type]


def test_no_filter_has_no_effect_on_rates_and_rollouts() -> None:
    assert NoFilter().rate_scale(0.25) == 1.0 and NoFilter().refill_rounds == 0


def test_top_count_of_no_group_is_rejected() -> None:
    with pytest.raises(ValueError, match="count"):
        TopCount(count=0)
