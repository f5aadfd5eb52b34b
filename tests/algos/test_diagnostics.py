"""Spread, repetition, mutual information, gradient shares and the adaptive turn discount."""

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turnwise.algos.diagnostics import (
    explained_variance,
    gradient_shares,
    information_metrics,
    measure_repetition,
    measure_retrieval,
    mutual_information,
    reward_std_buckets,
)
from turnwise.algos.turn_discount import (
    AdaptiveDiscount,
    CriticFit,
    critic_fit_by_distance,
    fit_discount,
    turn_distances,
)


def test_repetition_counts_members_equal_to_another() -> None:
    found = measure_repetition([[(1, 2, 3), (1, 2, 3), (4, 5, 6), (7,)], [(1,), (2,)]])
    assert found.copies == pytest.approx((0.5 + 0) / 2)


def test_overlap_is_the_share_of_ngrams_that_a_random_other_member_has() -> None:
    """Members of three 4-grams: the first two share two of them, the third none."""
    first, second, third = (1, 2, 3, 4, 5, 6), (2, 3, 4, 5, 6, 7), (11, 12, 13, 14, 15, 16)
    found = measure_repetition([[first, second, third]])
    assert found.copies == 0
    assert found.overlap == pytest.approx((2 / 3 / 2 + 2 / 3 / 2 + 0) / 3)


def test_repetition_ignores_groups_of_fewer_than_two() -> None:
    found = measure_repetition([[(1, 2)], []])
    assert found.copies is None and found.overlap is None


def test_empty_responses_are_repeats_without_overlap() -> None:
    found = measure_repetition([[(), ()]])
    assert (found.copies, found.overlap) == (1.0, 0.0)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
)
def test_repetition_is_a_share_independent_of_order(group: list[tuple[int, ...]], random: Random) -> None:
    found = measure_repetition([group])
    assert found.copies is not None and found.overlap is not None
    assert 0 <= found.copies <= 1 and 0 <= found.overlap <= 1
    random.shuffle(group)
    assert measure_repetition([group]) == found
    assert measure_repetition([[group[0]] * 3]).overlap == 1.0


def likelihoods(matched: float, other: float, prompts: int, rows: int) -> tuple[Tensor, Tensor]:
    own = torch.arange(prompts).repeat_interleave(rows)
    matrix = torch.full((prompts * rows, prompts), other, dtype=torch.float64)
    return matrix.scatter(1, own[:, None], matched), own


def test_mutual_information_is_maximal_if_reasoning_names_the_prompt() -> None:
    matrix, own = likelihoods(-5.0, -500.0, prompts=4, rows=2)
    found = mutual_information(matrix, own)
    assert found.information == pytest.approx(math.log(4)) and found.bound == pytest.approx(math.log(4))
    assert found.conditional_entropy == pytest.approx(5.0)
    assert found.entropy == pytest.approx(5.0 + math.log(4))
    assert measure_retrieval(matrix, own, torch.arange(4))[1].accuracy == 1.0


def test_mutual_information_is_zero_if_all_texts_are_equal() -> None:
    matrix, own = likelihoods(-5.0, -5.0, prompts=4, rows=2)
    assert mutual_information(matrix, own).information == pytest.approx(0.0)
    assert measure_retrieval(matrix, own, torch.arange(4))[1].above_chance == pytest.approx(0.0)


def test_retrieval_counts_equal_prompts_as_matches_and_ranks_from_the_top() -> None:
    matrix = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [3.0, 1.0, 2.0]])
    own, prompts = torch.tensor([0, 1, 2]), torch.tensor([5, 6, 5])
    found = measure_retrieval(matrix, own, prompts)
    # own prompts by rank: row 0 has its twin second, row 1 its own first, row 2 its twin first
    assert [found[k].accuracy for k in (1, 2, 4, 8)] == pytest.approx([2 / 3, 1, 1, 1])
    assert found[1].chance == pytest.approx((2 + 1 + 2) / 9)
    assert found[2].chance == 1.0
    assert found[1].above_chance == pytest.approx(2 / 3 - 5 / 9)


def test_mutual_information_z_score_may_use_a_moving_average() -> None:
    matrix = torch.tensor([[-1.0, -2.0], [-6.0, -3.0]], dtype=torch.float64)
    own = torch.tensor([0, 1])
    plain = mutual_information(matrix, own)
    smooth = mutual_information(matrix, own, previous_std=4.0, decay=0.75)
    assert smooth.marginal_std == pytest.approx(0.75 * 4 + 0.25 * plain.marginal_std)
    assert smooth.zscore == pytest.approx(plain.information / (smooth.marginal_std + 1e-3))


@given(st.integers(1, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_mutual_information_is_bounded_and_independent_of_order(prompts: int, rows: int, random: Random) -> None:
    count = prompts * rows
    matrix = torch.tensor([[random.uniform(-9, 0) for _ in range(prompts)] for _ in range(count)])
    own = torch.arange(prompts).repeat_interleave(rows)
    found = mutual_information(matrix, own)
    assert found.information <= found.bound + 1e-9
    order, columns = torch.tensor(random.sample(range(count), count)), random.sample(range(prompts), prompts)
    moved = torch.tensor([columns.index(column) for column in range(prompts)])
    again = mutual_information(matrix[order][:, columns], moved[own[order]])
    assert again.information == pytest.approx(found.information, abs=1e-6)


def test_mutual_information_metrics() -> None:
    matrix, own = likelihoods(-5.0, -500.0, prompts=2, rows=1)
    metrics = information_metrics(mutual_information(matrix, own), measure_retrieval(matrix, own, torch.arange(2)))
    assert metrics["mutual_information"] == pytest.approx(math.log(2))
    assert metrics["retrieval_at_1"] == 1.0 and metrics["retrieval_at_1_above_chance"] == 0.5
    assert all(isinstance(value, float) for value in metrics.values())


def test_reward_std_buckets_have_equal_size() -> None:
    assert reward_std_buckets(torch.tensor([0.5, 0.0, 0.9, 0.0, 0.1, 0.7]), 3).tolist() == [1, 0, 2, 0, 1, 2]
    assert reward_std_buckets(torch.zeros(5), 2).tolist() == [0, 0, 0, 1, 1]
    assert reward_std_buckets(torch.tensor([0.3]), 4).tolist() == [0]
    assert reward_std_buckets(torch.zeros(0), 4).tolist() == []


def test_gradient_shares_are_per_term() -> None:
    shares = gradient_shares({"task": [1.0, 3.0], "entropy": [2.0, 2.0], "kl": [0.0, 0.0]})
    assert shares == {"task": (0.25, 0.75), "entropy": (0.5, 0.5), "kl": (0.0, 0.0)}


def test_explained_variance_of_perfect_constant_and_opposite_critics() -> None:
    returns = torch.tensor([0.0, 1.0, 3.0])
    assert explained_variance(returns + 7, returns) == pytest.approx(1.0), "an offset is not variance"
    assert explained_variance(torch.full((3,), 0.5), returns) == pytest.approx(0.0)
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)
    assert explained_variance(returns, torch.full((3,), 0.1)) is None
    assert explained_variance(torch.zeros(0), torch.zeros(0)) is None


def test_turn_distances_count_back_from_each_trajectorys_last_turn() -> None:
    turns = torch.tensor([[0, 0, 9, 1, 2], [0, 1, 1, 9, 9]])
    mask = torch.tensor([[True, True, False, True, True], [True, True, True, False, False]])
    assert turn_distances(turns, mask).tolist() == [[2, 2, -1, 1, 0], [1, 0, 0, -1, -1]]


def critic_that_loses(share: float, distances: int, count: int = 2000) -> dict[int, CriticFit]:
    """A critic whose explained variance is share ** distance: noise is added to what it says."""
    generator = torch.Generator().manual_seed(0)
    returns = torch.randn(distances, count, generator=generator, dtype=torch.float64)
    noise = torch.randn(distances, count, generator=generator, dtype=torch.float64)
    lost = (1 - torch.tensor([share**d for d in range(distances)], dtype=torch.float64)).sqrt()
    where = torch.arange(distances)[:, None].expand_as(returns)
    values = returns + lost[:, None] * noise
    return critic_fit_by_distance(values.flatten(), returns.flatten(), where.flatten())


@pytest.mark.parametrize("share", [1.0, 0.95, 0.85])
def test_fit_discount_finds_the_decay_per_turn(share: float) -> None:
    assert fit_discount(critic_that_loses(share, 4)) == pytest.approx(share, abs=0.02)


def test_fit_discount_weights_distances_by_tokens() -> None:
    critic_fit = {
        0: CriticFit(explained=0.8, count=50),
        1: CriticFit(explained=0.8 * 0.9, count=30),
        2: CriticFit(explained=0.8 * 0.9, count=10),
    }
    slope = (30 * 1 * math.log(0.9) + 10 * 2 * math.log(0.9)) / (30 * 1 + 10 * 4)
    assert fit_discount(critic_fit) == pytest.approx(math.exp(slope))


def test_fit_discount_is_bounded_and_one_for_a_bad_critic() -> None:
    near = CriticFit(explained=0.9, count=20)
    assert fit_discount({0: near, 1: CriticFit(explained=0.1, count=20)}) == 0.8
    assert fit_discount({0: CriticFit(explained=0.1, count=20), 1: near}) == 1.0
    ignorant = CriticFit(explained=-2.0, count=20)
    assert fit_discount({0: ignorant, 3: ignorant}) == 1.0
    assert fit_discount({0: near}) is None and fit_discount({1: near, 2: near}) is None


def test_fit_discount_ignores_few_tokens_and_equal_returns() -> None:
    distances = torch.tensor([0] * 20 + [1] * 3 + [2] * 20 + [-1] * 20)
    returns = torch.arange(63.0)
    returns[23:43] = 1.0
    found = critic_fit_by_distance(returns, returns, distances)
    assert found == {0: CriticFit(explained=1.0, count=20)}


def test_adaptive_discount_moves_slowly_and_stays_without_a_fit() -> None:
    discount = AdaptiveDiscount(gamma=1.0, momentum=0.9)
    halved = {0: CriticFit(explained=0.9, count=20), 1: CriticFit(explained=0.45, count=20)}
    assert discount.update(halved).gamma == pytest.approx(0.98)
    assert discount.update({}) == discount
