"""Rules that hold for every estimator and all inputs."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from trajectories_for_tests import (
    GROUP_ESTIMATORS,
    NOISE,
    SETTINGS,
    compute,
    estimator,
    inputs,
    row_inputs,
    rows_of,
)

from turnwise.algos.advantage_types import AdvantageInputs
from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.settings import AlgoConfig

ZERO_SUM = ["grpo", "dr_grpo", "rloo"]
ZERO_IF_EQUAL = [name for name in (*GROUP_ESTIMATORS, "brpo") if name != "reinforce_pp_baseline"]
"""Estimators that give 0 for equal returns; reinforce_pp_baseline then subtracts the batch's mean."""


@given(inputs(), st.sampled_from(sorted(ADVANTAGES)), st.booleans())
def test_advantages_ignore_padding_and_observations(given: AdvantageInputs, name: str, whiten: bool) -> None:
    """Every column is moved one place further from the next, and three are appended."""
    rows, columns = given.mask.shape

    def spread(tensor: Tensor, fill: float) -> Tensor:
        wide = torch.full((rows, 2 * columns + 3), fill).to(tensor.dtype)
        wide[:, 0 : 2 * columns : 2] = tensor
        return wide

    assert given.values is not None and given.state_ids is not None
    wide = replace(
        given,
        mask=spread(given.mask, 0),
        token_rewards=spread(given.token_rewards, NOISE),
        turn_ids=spread(given.turn_ids, -1),
        values=spread(given.values, NOISE),
        state_ids=spread(given.state_ids, -1),
    )
    result = compute(name, wide, whiten=whiten)
    torch.testing.assert_close(result[:, 0 : 2 * columns : 2], compute(name, given, whiten=whiten))
    assert (result[~wide.mask] == 0).all()


UNORDERED = sorted(name for name, each in ADVANTAGES.items() if not each.compares_pairs)
"""Advantages that do not depend on the order of trajectories; the others take the first of equally good ones."""


@given(inputs(), st.sampled_from(UNORDERED), st.randoms(use_true_random=False))
def test_advantages_do_not_depend_on_trajectory_order(given: AdvantageInputs, name: str, random: Random) -> None:
    order = list(range(given.mask.shape[0]))
    random.shuffle(order)
    shuffled = compute(name, rows_of(given, order), whiten=True)
    torch.testing.assert_close(shuffled, compute(name, given, whiten=True)[order])


@given(inputs(), st.sampled_from(sorted(ADVANTAGES)), st.integers(1, 9))
def test_advantages_do_not_depend_on_id_values(given: AdvantageInputs, name: str, stride: int) -> None:
    """Only whether they are equal; a state's -1 alone means unknown."""
    assert given.state_ids is not None
    states = torch.where(given.state_ids < 0, -1, 40 - given.state_ids * stride)
    renamed = replace(
        given, group_ids=given.group_ids * -stride + 3, turn_ids=given.turn_ids * stride + 2, state_ids=states
    )
    torch.testing.assert_close(compute(name, renamed), compute(name, given))


@given(inputs(), st.sampled_from(sorted(ADVANTAGES)))
def test_advantages_ignore_trajectories_without_sampled_tokens(given: AdvantageInputs, name: str) -> None:
    """Batches that are padded with empty rows keep their statistics."""
    sampled = given.mask.any(dim=1)
    advantages = compute(name, given, whiten=True)
    alone = compute(name, rows_of(given, sampled), whiten=True)
    torch.testing.assert_close(advantages[sampled], alone)
    assert (advantages[~sampled] == 0).all()


@given(inputs(), st.sampled_from(ZERO_SUM))
def test_advantages_of_a_group_sum_to_zero(given: AdvantageInputs, name: str) -> None:
    advantages, sampled = compute(name, given), given.mask.any(dim=1)
    per_trajectory = advantages.sum(dim=1) / given.mask.sum(dim=1).clamp(min=1)
    for group in given.group_ids.unique():
        assert abs(per_trajectory[(given.group_ids == group) & sampled].sum().item()) < 1e-9


@given(inputs(), st.sampled_from(GROUP_ESTIMATORS))
def test_advantage_of_a_group_of_one_is_exactly_zero(given: AdvantageInputs, name: str) -> None:
    advantages, sampled = compute(name, given), given.mask.any(dim=1)
    size = ((given.group_ids[:, None] == given.group_ids) & sampled).sum(dim=1)
    assert (advantages[size == 1] == 0).all()


@given(inputs())
def test_bi_level_gae_is_gae_for_one_turn_and_equal_parameters(given: AdvantageInputs) -> None:
    one_turn = replace(given, turn_ids=torch.zeros_like(given.turn_ids))
    as_tokens = {"gamma_turn": SETTINGS["gamma"], "lam_turn": SETTINGS["lam"]}
    bi_level, gae = (estimator(name, **as_tokens).compute(one_turn) for name in ("bi_level_gae", "gae"))
    torch.testing.assert_close(bi_level.advantages, gae.advantages)
    torch.testing.assert_close(bi_level.returns, gae.returns)


@given(inputs())
def test_gae_variants_agree_for_turns_of_one_token(given: AdvantageInputs) -> None:
    """And they are token GAE with the turns' parameters."""
    columns = torch.arange(given.mask.shape[1]).expand(given.mask.shape)
    short = replace(given, turn_ids=columns)
    expected = compute("gae", short, gamma=SETTINGS["gamma_turn"], lam=SETTINGS["lam_turn"])
    for name in ("turn_gae", "step_gae", "bi_level_gae"):
        torch.testing.assert_close(compute(name, short), expected)


@given(inputs(), st.sampled_from(["turn_gae", "step_gae", "bi_level_gae"]))
def test_turn_ids_define_turns_not_rewards(given: AdvantageInputs, name: str) -> None:
    """With no reward at all, what is left is the critic's part, turn by turn."""
    zeros = torch.where(given.mask, 0.0, given.token_rewards)
    nothing, no_critic = replace(given, token_rewards=zeros), replace(given, values=zeros, bootstrap=None)
    whole, critic, rewards = (compute(name, each) for each in (given, nothing, no_critic))
    torch.testing.assert_close(critic + rewards, whole)
    one_turn = replace(nothing, turn_ids=torch.zeros_like(given.turn_ids))
    several = (given.turn_ids[:, 1:] != given.turn_ids[:, :-1]) & given.mask[:, 1:] & given.mask[:, :-1]
    if several.any():
        assert not torch.equal(critic, compute(name, one_turn)), "zero-reward turns must not merge"


@pytest.mark.parametrize("name", ZERO_IF_EQUAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero_advantage(name: str, dtype: torch.dtype) -> None:
    given = row_inputs([0.1] * 3 + [0.7] * 7 + [-1e6 / 3] * 5, [0] * 3 + [1] * 7 + [2] * 5, dtype)
    if name == "brpo":
        given = row_inputs([0.7] * 7, [0] * 3 + [1] * 4, dtype)
    assert (compute(name, given) == 0).all()


@pytest.mark.parametrize("name", [*ZERO_IF_EQUAL, "reinforce_pp_baseline"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_returns_equal_up_to_rounding_give_exactly_zero(name: str, dtype: torch.dtype) -> None:
    """0.1 + 0.2, 0.2 + 0.1 and 0.3 are three numbers to a float."""
    rewards = torch.tensor([[0.1, 0.2, 0.0], [0.0, 0.3, 0.0], [0.2, 0.0, 0.1], [1.0, -0.6, -0.1]], dtype=dtype)
    given = AdvantageInputs(
        mask=torch.ones(4, 3, dtype=torch.bool),
        token_rewards=rewards,
        group_ids=torch.zeros(4, dtype=torch.int64),
        turn_ids=torch.zeros(4, 3, dtype=torch.int64),
        state_ids=torch.zeros(4, 3, dtype=torch.int64),
    )
    assert (compute(name, given) == 0).all()
    differing = replace(given, token_rewards=rewards + torch.tensor([[0.0], [0.0], [0.0], [1e-4]], dtype=dtype))
    assert compute(name, differing)[3, 0] > 0


@pytest.mark.parametrize("name", ["gigpo", "turn_grpo"])
def test_turn_returns_equal_up_to_rounding_give_exactly_zero(name: str) -> None:
    """The outcomes differ, by what the second turn earned; the first turn earned 0.3 in both, by other sums."""
    given = AdvantageInputs(
        mask=torch.ones(2, 3, dtype=torch.bool),
        token_rewards=torch.tensor([[0.1, 0.2, 5.0], [0.3, 0.0, 7.0]]),
        group_ids=torch.zeros(2, dtype=torch.int64),
        turn_ids=torch.tensor([[0, 0, 1], [0, 0, 1]]),
        state_ids=torch.tensor([[0, 0, 1], [0, 0, 2]]),
    )
    turns = {"outcome_weight": 0.0, "gamma_turn": 0.0}
    advantages, outcomes = (compute(name, given, **turns, step_weight=weight) for weight in (1.0, 0.0))
    assert (advantages[:, :2] == (outcomes[:, :2] if name == "gigpo" else 0)).all()


def test_nan_rewards_propagate_to_advantages() -> None:
    for name in ADVANTAGES.keys() - {"clone"}:  # which reads no reward
        assert compute(name, row_inputs([math.nan, 1.0, 2.0], [0, 0, 0]))[0].isnan().all(), name


@pytest.mark.parametrize("name", sorted(name for name, advantage in ADVANTAGES.items() if advantage.needs_critic))
def test_whitening_changes_advantages_not_returns(name: str) -> None:
    given = row_inputs([1.0, 2.0, 4.0], [0, 0, 0])
    plain, white = (ADVANTAGES[name](whiten=whiten).compute(given) for whiten in (False, True))
    assert plain.returns is not None and white.returns is not None
    assert plain.advantages[:, 0].tolist() == [1.0, 2.0, 4.0]
    assert torch.equal(plain.returns, white.returns)
    assert abs(white.advantages.mean().item()) < 1e-12
    assert abs(white.advantages.std().item() - 1) < 1e-6


@pytest.mark.parametrize(
    ("name", "discount"), [("gae", 0.9), ("turn_gae", 0.7), ("step_gae", 0.7), ("bi_level_gae", 0.7)]
)
def test_bootstrap_raises_advantages_before_the_truncation(name: str, discount: float) -> None:
    given = row_inputs([0.0, 0.0], [0, 0])
    cut = replace(given, bootstrap=torch.tensor([2.0, 0.0], dtype=torch.float64))
    assert compute(name, cut)[:, 0].tolist() == [discount * 2.0, 0.0]
    assert compute(name, given)[:, 0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_advantages_keep_float32_and_accept_no_trajectories(name: str) -> None:
    given = row_inputs([1.0, 0.0], [0, 0], torch.float32)
    assert compute(name, given).dtype == torch.float32
    nothing = replace(given, mask=torch.zeros_like(given.mask))
    assert (compute(name, nothing, whiten=True) == 0).all()
    assert compute(name, rows_of(given, [])).shape == (0, 1)


def test_advantages_reject_wrong_shapes_and_unknown_names() -> None:
    given = row_inputs([1.0, 0.0], [0, 0])
    for field in ("token_rewards", "values", "turn_ids", "state_ids"):
        with pytest.raises(ValueError, match="shape"):
            replace(given, **{field: torch.zeros(2)})
    for field in ("group_ids", "bootstrap", "greedy_returns"):
        with pytest.raises(ValueError, match="shape"):
            replace(given, **{field: torch.zeros(3)})
    with pytest.raises(ValueError, match=r'Unknown algo\.advantage "grpo_but_new"'):
        AlgoConfig(advantage="grpo_but_new")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["turn_gae", "step_gae", "bi_level_gae"])
def test_adaptive_discount_must_be_replaced_by_a_number(name: str) -> None:
    with pytest.raises(ValueError, match="adaptive gamma_turn"):
        compute(name, row_inputs([1.0, 0.0], [0, 0]), gamma_turn="adaptive")
