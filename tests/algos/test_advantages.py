"""Advantages: their definitions by brute force, and the rules that hold for all inputs."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turnwise.algos.advantages import ADVANTAGES, AdvantageInputs, AdvantageParams

PARAMS = AdvantageParams(gamma=0.9, lam=0.8)
GROUP_ESTIMATORS = [name for name, advantage in ADVANTAGES.items() if advantage.needs_groups]
NOISE = math.nan
"""Stands wherever the mask is 0: a result that reads it is not a number."""

properties = settings(max_examples=40, deadline=None)


@st.composite
def inputs(draw: st.DrawFn) -> AdvantageInputs:
    """Up to 9 trajectories of up to 8 columns in up to 3 groups; some without a sampled token, some alone."""
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    mask = torch.rand(rows, columns, generator=generator) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    rewards = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    values = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return AdvantageInputs(
        mask=mask,
        token_rewards=torch.where(mask, rewards, NOISE),
        group_ids=torch.randint(0, 3, (rows,), generator=generator) * 7 - 5,
        turn_ids=torch.zeros_like(mask, dtype=torch.int64),
        values=torch.where(mask, values, NOISE),
        bootstrap=torch.randn(rows, generator=generator, dtype=torch.float64),
    )


def row_inputs(rewards: list[float], groups: list[int], dtype: torch.dtype = torch.float64) -> AdvantageInputs:
    """Trajectories of one token each."""
    return AdvantageInputs(
        mask=torch.ones(len(rewards), 1, dtype=torch.bool),
        token_rewards=torch.tensor(rewards, dtype=dtype)[:, None],
        group_ids=torch.tensor(groups),
        turn_ids=torch.zeros(len(rewards), 1, dtype=torch.int64),
        values=torch.zeros(len(rewards), 1, dtype=dtype),
    )


def compute(name: str, given: AdvantageInputs, params: AdvantageParams = PARAMS) -> Tensor:
    return ADVANTAGES[name].compute(given, params).advantages


def gae_by_definition(given: AdvantageInputs, row: int) -> list[float]:
    """A_i = sum over j >= i of (gamma lambda)^(j - i) delta_j over the row's sampled tokens."""
    assert given.values is not None and given.bootstrap is not None
    sampled = given.mask[row].nonzero()[:, 0].tolist()
    rewards = [given.token_rewards[row, t].item() for t in sampled]
    values = [given.values[row, t].item() for t in sampled] + [given.bootstrap[row].item()]
    deltas = [reward + PARAMS.gamma * values[i + 1] - values[i] for i, reward in enumerate(rewards)]
    decay = PARAMS.gamma * PARAMS.lam
    return [sum(decay ** (j - i) * deltas[j] for j in range(i, len(deltas))) for i in range(len(deltas))]


@properties
@given(inputs())
def test_gae_is_its_definition_over_the_sampled_tokens_with_bootstrap(given: AdvantageInputs) -> None:
    result = ADVANTAGES["gae"].compute(given, PARAMS)
    assert given.values is not None and result.returns is not None
    for row in range(given.mask.shape[0]):
        expected = torch.tensor(gae_by_definition(given, row), dtype=torch.float64)
        sampled = given.mask[row]
        torch.testing.assert_close(result.advantages[row][sampled], expected)
        torch.testing.assert_close(result.returns[row][sampled], expected + given.values[row][sampled])
        assert (result.advantages[row][~sampled] == 0).all()
        assert (result.returns[row][~sampled] == 0).all()


@properties
@given(inputs(), st.sampled_from(sorted(ADVANTAGES)), st.booleans())
def test_padding_and_observations_change_nothing(given: AdvantageInputs, name: str, whiten: bool) -> None:
    """Every column is moved one place further from the next, and three are appended."""
    rows, columns = given.mask.shape

    def spread(tensor: Tensor, fill: float) -> Tensor:
        wide = torch.full((rows, 2 * columns + 3), fill).to(tensor.dtype)
        wide[:, 0 : 2 * columns : 2] = tensor
        return wide

    assert given.values is not None
    wide = replace(
        given,
        mask=spread(given.mask, 0),
        token_rewards=spread(given.token_rewards, NOISE),
        turn_ids=spread(given.turn_ids, -1),
        values=spread(given.values, NOISE),
    )
    params = replace(PARAMS, whiten=whiten)
    result = compute(name, wide, params)
    torch.testing.assert_close(result[:, 0 : 2 * columns : 2], compute(name, given, params))
    assert (result[~wide.mask] == 0).all()


@properties
@given(inputs(), st.sampled_from(sorted(ADVANTAGES)), st.randoms(use_true_random=False))
def test_the_order_of_trajectories_changes_nothing(given: AdvantageInputs, name: str, random: Random) -> None:
    order = list(range(given.mask.shape[0]))
    random.shuffle(order)
    assert given.values is not None and given.bootstrap is not None
    shuffled = AdvantageInputs(
        mask=given.mask[order],
        token_rewards=given.token_rewards[order],
        group_ids=given.group_ids[order],
        turn_ids=given.turn_ids[order],
        values=given.values[order],
        bootstrap=given.bootstrap[order],
    )
    params = replace(PARAMS, whiten=True)
    torch.testing.assert_close(compute(name, shuffled, params), compute(name, given, params)[order])


@properties
@given(inputs(), st.sampled_from(GROUP_ESTIMATORS))
def test_a_group_sums_to_zero_and_one_alone_gets_exactly_zero(given: AdvantageInputs, name: str) -> None:
    advantages, sampled = compute(name, given), given.mask.any(dim=1)
    per_trajectory = advantages.sum(dim=1) / given.mask.sum(dim=1).clamp(min=1)
    for group in given.group_ids.unique():
        members = (given.group_ids == group) & sampled
        assert abs(per_trajectory[members].sum().item()) < 1e-9
        if members.sum() == 1:
            assert (advantages[members] == 0).all()


@properties
@given(inputs(), st.sampled_from(GROUP_ESTIMATORS))
def test_a_trajectory_without_a_sampled_token_is_as_if_it_were_not_there(given: AdvantageInputs, name: str) -> None:
    sampled = given.mask.any(dim=1)
    alone = AdvantageInputs(
        mask=given.mask[sampled],
        token_rewards=given.token_rewards[sampled],
        group_ids=given.group_ids[sampled],
        turn_ids=given.turn_ids[sampled],
    )
    advantages = compute(name, given)
    assert torch.equal(advantages[sampled], compute(name, alone))
    assert (advantages[~sampled] == 0).all()


def test_group_estimators_on_a_hand_worked_group() -> None:
    given = row_inputs([1.0, 0.0, 0.0, 5.0, 2.0], [0, 0, 0, 1, 1])
    third = 1 / 3
    expected = {
        "dr_grpo": [2 * third, -third, -third, 1.5, -1.5],
        "rloo": [1.0, -0.5, -0.5, 3.0, -3.0],
        "grpo": [
            2 * third / math.sqrt(third),
            -third / math.sqrt(third),
            -third / math.sqrt(third),
            0.5**0.5,
            -(0.5**0.5),
        ],
    }
    for name, advantages in expected.items():
        got = compute(name, given)[:, 0]
        torch.testing.assert_close(got, torch.tensor(advantages, dtype=torch.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(name: str, dtype: torch.dtype) -> None:
    given = row_inputs([0.1] * 3 + [0.7] * 7 + [-1e6 / 3] * 5, [0] * 3 + [1] * 7 + [2] * 5, dtype)
    assert (compute(name, given) == 0).all()


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_returns_that_are_equal_but_for_rounding_give_exactly_zero(name: str, dtype: torch.dtype) -> None:
    """0.1 + 0.2, 0.2 + 0.1 and 0.3 are three numbers to a float."""
    rewards = torch.tensor([[0.1, 0.2, 0.0], [0.0, 0.3, 0.0], [0.2, 0.0, 0.1], [1.0, -0.6, -0.1]], dtype=dtype)
    given = AdvantageInputs(
        mask=torch.ones(4, 3, dtype=torch.bool),
        token_rewards=rewards,
        group_ids=torch.zeros(4, dtype=torch.int64),
        turn_ids=torch.zeros(4, 3, dtype=torch.int64),
    )
    assert (compute(name, given) == 0).all()
    differing = replace(given, token_rewards=rewards + torch.tensor([[0.0], [0.0], [0.0], [1e-4]], dtype=dtype))
    assert compute(name, differing)[3, 0] > 0


def test_a_reward_that_is_not_a_number_is_not_hidden() -> None:
    assert compute("grpo", row_inputs([math.nan, 1.0, 2.0], [0, 0, 0])).isnan().all()


def test_whitening_comes_after_the_returns_and_only_where_asked() -> None:
    given = row_inputs([1.0, 2.0, 4.0], [0, 0, 0])
    plain = ADVANTAGES["gae"].compute(given, AdvantageParams())
    white = ADVANTAGES["gae"].compute(given, AdvantageParams(whiten=True))
    assert plain.returns is not None and white.returns is not None
    assert plain.advantages[:, 0].tolist() == [1.0, 2.0, 4.0]
    assert torch.equal(plain.returns, white.returns)
    assert abs(white.advantages.mean().item()) < 1e-12
    assert abs(white.advantages.std().item() - 1) < 1e-6


def test_bootstrap_raises_what_came_before_the_cut() -> None:
    given = row_inputs([0.0, 0.0], [0, 0])
    cut = replace(given, bootstrap=torch.tensor([2.0, 0.0], dtype=torch.float64))
    assert compute("gae", cut)[:, 0].tolist() == [0.9 * 2.0, 0.0]
    assert compute("gae", given)[:, 0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_float32_stays_float32_and_no_trajectory_at_all_is_no_error(name: str) -> None:
    given = row_inputs([1.0, 0.0], [0, 0], torch.float32)
    assert compute(name, given).dtype == torch.float32
    nothing = replace(given, mask=torch.zeros_like(given.mask))
    assert (compute(name, nothing, replace(PARAMS, whiten=True)) == 0).all()


def test_wrong_shapes_and_a_missing_critic_are_refused() -> None:
    given = row_inputs([1.0, 0.0], [0, 0])
    with pytest.raises(ValueError, match="shape"):
        replace(given, token_rewards=torch.zeros(2))
    with pytest.raises(ValueError, match="critic"):
        compute("gae", replace(given, values=None))
