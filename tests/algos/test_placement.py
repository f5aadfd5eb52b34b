"""Turns, placement of rewards, and the advantage mask."""

import math
from dataclasses import replace

import pytest
import torch
from golden_for_tests import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from trajectories_for_tests import compute, inputs

from turnwise.algos.advantage_types import AdvantageInputs, find_turns, restrict_to_tokens
from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.normalisation import PLACEMENTS, place_returns, scale_process_rewards

MASK = torch.tensor([[1, 1, 0, 1, 0, 1, 1, 0], [0, 1, 1, 1, 0, 0, 0, 0], [0] * 8], dtype=torch.bool)
TURN_IDS = torch.tensor([[0, 0, 9, 1, 9, 3, 3, 9], [9, 0, 1, 1, 9, 9, 9, 9], [9] * 8])
"""The first row's turn 2 sampled nothing; the second row's turns follow each other without an observation."""
TURN_REWARDS = torch.tensor([[1.0, 2.0, 4.0, 8.0], [16.0, 32.0, 0.0, 0.0], [64.0, 0.0, 0.0, 0.0]])


def test_turns_begin_and_end_where_the_id_of_sampled_tokens_changes() -> None:
    turns = find_turns(MASK, TURN_IDS)
    assert turns.starts.long().tolist() == [[1, 0, 0, 1, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0], [0] * 8]
    assert turns.ends.long().tolist() == [[0, 1, 0, 1, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0, 0, 0], [0] * 8]
    assert turns.number.tolist() == [[0, 0, 0, 1, 0, 2, 2, 0], [0, 0, 1, 1, 0, 0, 0, 0], [0] * 8]
    assert turns.mask.long().tolist() == [[1, 1, 1], [1, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("name", sorted(GOLDEN["batches"]))
def test_turn_ends_match_the_golden_batches(name: str) -> None:
    mask, turn_ids, ends = (torch.tensor(GOLDEN["batches"][name][key]) for key in ("mask", "turn_id", "turn_end"))
    assert torch.equal(find_turns(mask.bool(), turn_ids).ends, ends.bool())


@given(inputs())
def test_turn_matrices_gather_values_at_turns(given: AdvantageInputs) -> None:
    turns = find_turns(given.mask, given.turn_ids)
    for row in range(given.mask.shape[0]):
        sampled = given.mask[row]
        ids, rewards = given.turn_ids[row][sampled], given.token_rewards[row][sampled]
        parts = [rewards[ids == turn] for turn in ids.unique()]
        matrices = (
            turns.sums(given.token_rewards),
            turns.at_starts(given.token_rewards),
            turns.at_ends(given.token_rewards),
        )
        for matrix, expected in zip(matrices, zip(*[(p.sum(), p[0], p[-1]) for p in parts], strict=True), strict=False):
            torch.testing.assert_close(matrix[row][turns.mask[row]], torch.stack(expected))
        assert int(turns.mask[row].sum()) == len(parts)
    back = turns.spread(turns.at_starts(given.turn_ids))
    assert torch.equal(back[given.mask], given.turn_ids[given.mask])
    assert (back[~given.mask] == 0).all()


def test_placement_turn_uses_the_last_sampled_token_of_the_turn() -> None:
    """The reward of the turn that sampled nothing goes to the turn before it, or to the first."""
    placed = PLACEMENTS["turn"](TURN_REWARDS, MASK, TURN_IDS)
    assert placed.tolist() == [[0, 1, 0, 6, 0, 0, 8, 0], [0, 16, 0, 32, 0, 0, 0, 0], [0] * 8]
    late = PLACEMENTS["turn"](TURN_REWARDS[:1], MASK[:1], TURN_IDS[:1] + 1)
    assert late.tolist() == [[0, 3, 0, 12, 0, 0, 0, 0]]


def test_placement_trajectory_uses_the_last_sampled_token() -> None:
    placed = PLACEMENTS["trajectory"](TURN_REWARDS, MASK, TURN_IDS)
    assert placed.tolist() == [[0, 0, 0, 0, 0, 0, 15, 0], [0, 0, 0, 48, 0, 0, 0, 0], [0] * 8]
    assert torch.equal(placed, place_returns(TURN_REWARDS.sum(dim=1), MASK))


@given(inputs(), st.sampled_from(sorted(PLACEMENTS)), st.integers(1, 12))
def test_placement_preserves_the_reward_sum(given: AdvantageInputs, name: str, turns: int) -> None:
    """An outcome or a format penalty that is part of a turn's reward counts once, however it is placed."""
    rewards = torch.randn(len(given.mask), turns, generator=torch.Generator().manual_seed(turns), dtype=torch.float64)
    placed = PLACEMENTS[name](rewards, given.mask, given.turn_ids)
    sampled = given.mask.any(dim=1)
    torch.testing.assert_close(placed.sum(dim=1)[sampled], rewards.sum(dim=1)[sampled])
    assert (placed[~given.mask] == 0).all()
    outcome = replace(given, token_rewards=placed)
    whole = replace(given, token_rewards=place_returns(rewards.sum(dim=1), given.mask))
    torch.testing.assert_close(compute("dr_grpo", outcome), compute("dr_grpo", whole))


def test_process_rewards_are_scaled_by_the_largest_sum_from_a_token_on() -> None:
    rewards = torch.tensor([[1.0, -5.0, 2.0, math.nan], [1.0, 1.0, math.nan, 99.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    expected = torch.tensor([[1.0, -5.0, 2.0, 0.0], [1.0, 1.0, 0.0, 0.0]], dtype=torch.float64) / (3 + 1e-6)
    torch.testing.assert_close(scale_process_rewards(rewards, mask), expected)
    assert (scale_process_rewards(torch.zeros(2, 4), mask) == 0).all()


def chosen_tokens(given: AdvantageInputs, seed: int) -> Tensor:
    return torch.rand(given.mask.shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def test_restrict_to_tokens_moves_rewards_to_the_previous_token() -> None:
    """Thinking only: the turn's reward sits on an answer token, which the estimator does not see."""
    given = AdvantageInputs(
        mask=torch.tensor([[True, True, False, True, True], [True, True, True, True, False]]),
        token_rewards=torch.tensor([[1.0, 2.0, 99.0, 4.0, 8.0], [1.0, 2.0, 4.0, 8.0, 99.0]]),
        group_ids=torch.tensor([0, 0]),
        turn_ids=torch.tensor([[0, 0, -1, 1, 1], [0, 0, 1, 1, -1]]),
    )
    thinking = torch.tensor([[True, False, True, True, False], [False, True, False, False, True]])
    seen = restrict_to_tokens(given, thinking)
    assert seen.mask.long().tolist() == [[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]]
    assert seen.token_rewards[seen.mask].tolist() == [3.0, 12.0, 15.0]


@given(inputs(), st.integers(0, 1000), st.sampled_from(["grpo", "dr_grpo", "rloo", "arpo", "brpo"]))
def test_returns_do_not_depend_on_the_advantage_mask(given: AdvantageInputs, seed: int, name: str) -> None:
    chosen = chosen_tokens(given, seed) | (given.mask & (given.mask.cumsum(dim=1) == 1))
    seen, whole = compute(name, restrict_to_tokens(given, chosen)), compute(name, given)
    torch.testing.assert_close(seen, torch.where(chosen, whole, 0.0))


@given(inputs(), st.integers(0, 1000), st.sampled_from(sorted(ADVANTAGES)))
def test_advantage_mask_gives_zero_outside(given: AdvantageInputs, seed: int, name: str) -> None:
    chosen = chosen_tokens(given, seed)
    assert (compute(name, restrict_to_tokens(given, chosen))[~(chosen & given.mask)] == 0).all()
    everything = restrict_to_tokens(given, torch.ones_like(given.mask))
    assert torch.equal(compute(name, everything), compute(name, given))


@given(inputs(), st.integers(0, 1000))
def test_restrict_to_tokens_keeps_undiscounted_returns_to_go(given: AdvantageInputs, seed: int) -> None:
    """But at the first, which also gets what came before it."""
    undiscounted = {"gamma": 1.0, "gamma_turn": 1.0}
    seen = restrict_to_tokens(given, chosen_tokens(given, seed))
    later = seen.mask & (seen.mask.cumsum(dim=1) > 1)
    restricted, whole = (compute("reinforce", each, **undiscounted) for each in (seen, given))
    torch.testing.assert_close(restricted[later], whole[later])
