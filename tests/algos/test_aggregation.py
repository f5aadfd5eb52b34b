"""Aggregation weights and whitening."""

import pytest
import torch
from choices_for_tests import choose
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turnwise.algos.losses import AGGREGATIONS
from turnwise.algos.stats import whiten

LENGTH = 16
tokens = st.lists(st.tuples(st.integers(0, 6), st.floats(-2, 2)), min_size=1, max_size=40)
"""(trajectory, loss) of each sampled token, in any order: packing may cut a trajectory's tokens apart."""


def weights_of(mode: str, sequences: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return choose(AGGREGATIONS, mode, constant_length=LENGTH).weights(sequences, dtype)


@given(tokens, st.sampled_from(sorted(AGGREGATIONS)))
def test_aggregation_weights_match_the_definition(given: list[tuple[int, float]], mode: str) -> None:
    rows = [[loss for owner, loss in given if owner == sequence] for sequence in sorted({owner for owner, _ in given})]
    expected = {
        "token-mean": sum(map(sum, rows)) / len(given),
        "seq-mean-token-sum": sum(map(sum, rows)) / len(rows),
        "seq-mean-token-mean": sum(sum(row) / len(row) for row in rows) / len(rows),
        "seq-mean-token-sum-norm": sum(sum(row) / LENGTH for row in rows) / len(rows),
    }
    weights = weights_of(mode, torch.tensor([owner for owner, _ in given]), torch.float64)
    losses = torch.tensor([loss for _, loss in given], dtype=torch.float64)
    assert (weights * losses).sum().item() == pytest.approx(expected[mode], abs=1e-12)


@given(tokens, st.sampled_from(sorted(AGGREGATIONS)), st.integers(1, 7))
def test_aggregation_is_independent_of_micro_batches(given: list[tuple[int, float]], mode: str, size: int) -> None:
    sequences = torch.tensor([owner for owner, _ in given])
    losses = torch.tensor([loss for _, loss in given], dtype=torch.float64)
    weighted = weights_of(mode, sequences, torch.float64) * losses
    order = sequences.argsort(stable=True)
    parts = [part.sum() for part in weighted[order].split(size)]
    torch.testing.assert_close(sum(parts), weighted.sum())


@given(tokens, st.sampled_from(["token-mean", "seq-mean-token-mean"]))
def test_weights_of_a_mean_sum_to_one(given: list[tuple[int, float]], mode: str) -> None:
    weights = weights_of(mode, torch.tensor([owner for owner, _ in given]))
    assert weights.sum().item() == pytest.approx(1, abs=1e-5)
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_aggregation_ignores_trajectory_indices_and_accepts_none(mode: str) -> None:
    """A trajectory that sampled nothing has no token here, so a gap in the numbers never counts."""
    few, far = torch.tensor([0, 0, 1]), torch.tensor([90, 90, 7])
    assert torch.equal(weights_of(mode, few), weights_of(mode, far))
    assert weights_of(mode, few[:0]).shape == (0,)


def test_aggregation_weights_long_trajectories_by_token_not_sequence() -> None:
    sequences = torch.tensor([0, 0, 0, 1])
    assert weights_of("token-mean", sequences).tolist() == pytest.approx([1 / 4] * 4)
    assert weights_of("seq-mean-token-mean", sequences).tolist() == pytest.approx([1 / 6] * 3 + [1 / 2])
    assert weights_of("seq-mean-token-sum", sequences).tolist() == pytest.approx([1 / 2] * 4)
    assert weights_of("seq-mean-token-sum-norm", sequences).tolist() == pytest.approx([1 / 32] * 4)


def test_whitening_ignores_masked_values() -> None:
    values = torch.tensor([[1.0, 9e9, 3.0], [8.0, float("nan"), -7.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False, True], [True, False, False]])
    whitened = whiten(values, mask)
    assert (whitened[~mask] == 0).all()
    assert whitened[mask].mean().item() == pytest.approx(0, abs=1e-12)
    assert whitened[mask].var(correction=1).item() == pytest.approx(1)
    assert whitened[0, 0] < whitened[0, 2] < whitened[1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitening_of_equal_or_single_values_is_exactly_zero(dtype: torch.dtype) -> None:
    equal = torch.full((3, 3), 0.1, dtype=dtype)
    everywhere = torch.ones(3, 3, dtype=torch.bool)
    assert (whiten(equal, everywhere) == 0).all()
    assert whiten(equal, everywhere).dtype == dtype
    single = torch.zeros_like(everywhere)
    single[1, 2] = True
    assert (whiten(equal, single) == 0).all()
    assert (whiten(equal, ~everywhere) == 0).all()
