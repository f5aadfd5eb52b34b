"""Normalisation of returns, and several rewards at once."""

import math

import pytest
import torch
from choices_for_tests import choose
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from trajectories_for_tests import row_inputs

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.normalisation import NORMALISATIONS, Mean, combine_rewards
from turnwise.algos.settings import AlgoConfig

returns_in_scopes = st.lists(st.tuples(st.floats(-5, 5), st.integers(-2, 2)), min_size=1, max_size=12)


def tensors(given: list[tuple[float, int]]) -> tuple[Tensor, Tensor]:
    returns = torch.tensor([value for value, _ in given], dtype=torch.float64)
    return returns, torch.tensor([scope for _, scope in given])


def normalise(returns: Tensor, groups: Tensor, name: str) -> Tensor:
    """Within groups."""
    return NORMALISATIONS[name]().normalise(returns, groups, torch.zeros_like(groups))


@given(returns_in_scopes)
def test_each_scope_has_mean_zero_and_std_one(given: list[tuple[float, int]]) -> None:
    returns, scopes = tensors(given)
    centred, standardised = normalise(returns, scopes, "mean"), normalise(returns, scopes, "mean_std")
    for scope in scopes.unique():
        members = scopes == scope
        assert abs(centred[members].mean().item()) < 1e-9
        spread = returns[members].std().item() if members.sum() > 1 else 0.0
        if spread > 1e-3:
            assert standardised[members].std().item() == pytest.approx(1, abs=2e-3)
            rises = [each[members][:, None] - each[members] for each in (returns, standardised)]
            assert (rises[0] * rises[1] >= 0).all(), "the order stays"
        if spread <= 1e-7:
            assert (standardised[members] == 0).all()


@given(returns_in_scopes)
def test_identity_keeps_and_asym_clip_bounds(given: list[tuple[float, int]]) -> None:
    returns, scopes = tensors(given)
    assert torch.equal(normalise(returns, scopes, "identity"), returns)
    standardised = normalise(returns, scopes, "mean_std")
    assert torch.equal(normalise(returns, scopes, "asym_clip"), standardised.clamp(-1, 3))


def test_asym_clip_bounds_rare_failures_and_keeps_rare_successes() -> None:
    scopes = torch.zeros(20, dtype=torch.int64)
    failure, success = torch.tensor([1.0] * 19 + [0.0]), torch.tensor([0.0] * 19 + [1.0])
    assert normalise(failure, scopes, "mean_std")[-1] < -4
    assert normalise(failure, scopes, "asym_clip")[-1] == -1
    assert normalise(success, scopes, "asym_clip")[-1] == 3


@pytest.mark.parametrize("name", sorted(NORMALISATIONS.keys() - {"identity"}))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_or_single_returns_give_exactly_zero(name: str, dtype: torch.dtype) -> None:
    returns = torch.tensor([0.1] * 3 + [0.7] * 7 + [1e6 / 3, 0.1 + 0.2, 0.3], dtype=dtype)
    scopes = torch.tensor([0] * 3 + [1] * 7 + [2, 3, 3])
    assert (normalise(returns, scopes, name) == 0).all()
    assert normalise(returns, scopes, name).dtype == dtype


def test_std_at_the_floor_counts_as_equal() -> None:
    scopes = torch.zeros(2, dtype=torch.int64)
    tie, spread = (torch.tensor([0.0, gap], dtype=torch.float64) for gap in (1.4e-6, 1e-5))
    assert (normalise(tie, scopes, "mean_std") == 0).all()
    assert normalise(spread, scopes, "mean_std")[1] > 0.5


def test_scopes_are_group_environment_and_batch() -> None:
    returns = torch.tensor([1.0, 3.0, 10.0, 20.0])
    groups, environments = torch.tensor([4, 4, 5, 6]), torch.tensor([0, 0, 1, 1])
    expected = {"group": [-1, 1, 0, 0], "environment": [-1, 1, -5, 5], "batch": [-7.5, -5.5, 1.5, 11.5]}
    for over, centred in expected.items():
        assert Mean(over=over).normalise(returns, groups, environments).tolist() == centred  # type: ignore[arg-type]


@given(returns_in_scopes)
def test_arpo_brpo_and_grpo_equal_normalised_returns(given: list[tuple[float, int]]) -> None:
    returns, groups = tensors(given)
    rows = row_inputs(returns.tolist(), groups.tolist())
    family = {"arpo": ("batch", "identity"), "brpo": ("batch", "mean_std"), "grpo": ("group", "mean_std")}
    for estimator, (scope, name) in family.items():
        expected = choose(NORMALISATIONS, name, over=scope).normalise(returns, groups, groups)
        got = ADVANTAGES[estimator]().compute(rows).advantages[:, 0]
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9)


def test_unknown_normaliser_is_rejected() -> None:
    with pytest.raises(ValueError, match=r'Unknown algo\.normalise "mean_but_new"'):
        AlgoConfig(normalise="mean_but_new")  # type: ignore[arg-type]


def test_combined_rewards_match_hand_computed_values() -> None:
    """Each column is +-sqrt(1/2) within its group of two, whatever its scale; weights 2 and 1; then whitened."""
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1000.0], [5.0, 7.0], [4.0, 6.0]], dtype=torch.float64)
    combined = combine_rewards(rewards, torch.tensor([2.0, 1.0]), torch.tensor([0, 0, 1, 1]))
    raw = torch.tensor([1.0, -1.0, 3.0, -3.0], dtype=torch.float64)
    torch.testing.assert_close(combined, raw / math.sqrt(20 / 3), rtol=1e-5, atol=1e-5)


def test_combined_rewards_are_normalised_before_summing() -> None:
    """Added up first, 0.001 beside 1000 would vanish in the group's std."""
    rewards = torch.tensor([[1000.0, 0.0], [1000.0, 0.001], [0.0, 0.0], [0.0, 0.001]], dtype=torch.float64)
    combined = combine_rewards(rewards, torch.ones(2), torch.zeros(4, dtype=torch.int64))
    assert combined[1] - combined[0] == pytest.approx((combined[0] - combined[2]).item(), rel=1e-2)


def test_combined_rewards_need_one_weight_each() -> None:
    with pytest.raises(ValueError, match="column"):
        combine_rewards(torch.ones(4, 2), torch.ones(3), torch.zeros(4))
