"""Cases that were worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from choices_for_tests import choose
from torch import Tensor
from trajectories_for_tests import row_inputs

from turnwise.algos.advantage_types import AdvantageInputs
from turnwise.algos.advantages import ADVANTAGES

ROOT_HALF = math.sqrt(0.5)


def close(got: Tensor, expected: list[float] | list[list[float]]) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def compute(name: str, given: AdvantageInputs, **settings: Any) -> Tensor:
    return choose(ADVANTAGES, name, whiten=False, **settings).compute(given).advantages


def two_turns(rewards: list[tuple[float, float]], states: list[tuple[int, int]], groups: list[int]) -> AdvantageInputs:
    """Each row: a turn of two tokens, an observation, a turn of one token."""
    rows = len(rewards)
    return AdvantageInputs(
        mask=torch.tensor([[True, True, False, True]] * rows),
        token_rewards=torch.tensor([[0.0, first, math.nan, second] for first, second in rewards], dtype=torch.float64),
        group_ids=torch.tensor(groups),
        turn_ids=torch.tensor([[0, 0, -1, 1]] * rows),
        state_ids=torch.tensor([[first, first, -1, second] for first, second in states]),
    )


def test_group_advantages_match_hand_computed_values() -> None:
    given = row_inputs([1.0, 0.0, 0.0, 5.0, 2.0], [0, 0, 0, 1, 1])
    third = 1 / 3
    expected = {
        "dr_grpo": [2 * third, -third, -third, 1.5, -1.5],
        "rloo": [1.0, -0.5, -0.5, 3.0, -3.0],
        "grpo": [2 / math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3), ROOT_HALF, -ROOT_HALF],
        "pass_at_k": [math.sqrt(3), 0.0, 0.0, 3.0 / math.sqrt(4.5), 0.0],
        "gpg": [5 / 3 * each for each in (2 * third, -third, -third, 1.5, -1.5)],
        "arpo": [1.0, 0.0, 0.0, 5.0, 2.0],
        "brpo": [each / math.sqrt(4.3) for each in (-0.6, -1.6, -1.6, 3.4, 0.4)],
    }
    for name, advantages in expected.items():
        close(compute(name, given)[:, 0], advantages)


def test_pass_at_k_is_zero_for_ties_and_divides_by_std_if_set() -> None:
    given = row_inputs([2.0, 2.0, 0.0, 3.0, 1.0, 0.0], [0, 0, 0, 1, 1, 1])
    close(compute("pass_at_k", given, by_std=False)[:, 0], [0.0, 0.0, 0.0, 2.0, 0.0, 0.0])


def test_opo_weighs_the_baseline_by_length() -> None:
    """Three tokens that earned 4 and one that earned 0: the baseline is 3, not 2."""
    given = AdvantageInputs(
        mask=torch.tensor([[True, True, True], [True, False, False]]),
        token_rewards=torch.tensor([[0.0, 0.0, 4.0], [0.0, 9.0, 9.0]], dtype=torch.float64),
        group_ids=torch.tensor([4, 4]),
        turn_ids=torch.zeros(2, 3, dtype=torch.int64),
    )
    close(compute("opo", given), [[1.0, 1.0, 1.0], [-3.0, 0.0, 0.0]])


def test_remax_subtracts_the_greedy_return() -> None:
    given = replace(row_inputs([1.0, 0.0], [0, 0]), greedy_returns=torch.tensor([0.25, 0.25], dtype=torch.float64))
    close(compute("remax", given)[:, 0], [0.75, -0.25])


def test_reinforce_discounts_by_tokens_and_by_turns() -> None:
    """1 at the first turn's end, 8 at the second's, one turn's end and one token later."""
    given = two_turns([(1.0, 8.0)], [(0, 1)], [0])
    close(compute("reinforce", given, gamma=0.5), [[2.5, 5.0, 0.0, 8.0]])
    close(compute("reinforce", given, gamma_turn=0.5), [[5.0, 5.0, 0.0, 8.0]])
    close(compute("reinforce", given, gamma=0.5, gamma_turn=0.5), [[1.5, 3.0, 0.0, 8.0]])


def test_gigpo_matches_hand_computed_values() -> None:
    """Three members act in state 0, then two of them in state 1 and one in state 2; another group has a state 0, too.

    Returns from the first turn on, at gamma_turn 0.5: 1 + 2, 0 + 1, 1 + 0. From the second on: 4, 2, 0.
    Outcomes: 5, 2, 1 with mean 8/3. State 0: mean 5/3. State 1: 4 and 2, mean 3. State 2 was met once.
    """
    given = two_turns(
        [(1.0, 4.0), (0.0, 2.0), (1.0, 0.0), (9.0, 9.0), (9.0, 9.0)],
        [(0, 1), (0, 1), (0, 2), (0, 1), (0, 1)],
        [3, 3, 3, 8, 8],
    )
    settings = {"gamma_turn": 0.5, "step_weight": 10.0}
    outcomes, first, second = (7 / 3, -2 / 3, -5 / 3), (4 / 3, -2 / 3, -2 / 3), (1.0, -1.0, 0.0)
    expected = [
        [episode + 10 * one, episode + 10 * one, 0.0, episode + 10 * two]
        for episode, one, two in zip(outcomes, first, second, strict=True)
    ]
    close(compute("gigpo", given, **settings, by_std=False), [*expected, [0.0] * 4, [0.0] * 4])

    stds = math.sqrt((outcomes[0] ** 2 + outcomes[1] ** 2 + outcomes[2] ** 2) / 2), math.sqrt(4 / 3), math.sqrt(2)
    divided = [
        [episode / stds[0] + 10 * one / stds[1]] * 2 + [0.0, episode / stds[0] + 10 * two / stds[2]]
        for episode, one, two in zip(outcomes, first, second, strict=True)
    ]
    close(compute("gigpo", given, **settings, by_std=True)[:3], divided)


def test_gigpo_counts_an_episode_once_however_many_turns_it_has() -> None:
    """Two turns against one: the mean of the outcomes 3 and 0 is 1.5, where a count of steps would make it 2."""
    given = two_turns([(1.0, 2.0), (0.0, 0.0)], [(-1, -1), (-1, -1)], [0, 0])
    given = replace(given, mask=torch.tensor([[True, True, False, True], [True, True, False, False]]))
    close(
        compute("gigpo", given, by_std=False),
        [[1.5, 1.5, 0.0, 1.5], [-1.5, -1.5, 0.0, 0.0]],
    )


def test_gigpo_has_no_step_advantage_for_unknown_states() -> None:
    given = two_turns([(1.0, 4.0), (0.0, 2.0)], [(-1, 1), (-1, 1)], [0, 0])
    both, episodes = (compute("gigpo", given, step_weight=weight, by_std=False) for weight in (1.0, 0.0))
    close(both - episodes, [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, -1.0]])


def test_turn_grpo_compares_members_that_reached_the_turn() -> None:
    """First turns earned 3, 0, 0; the third member stopped then. Second turns earned 1 and 3. Outcomes: 4, 3, 0."""
    given = two_turns([(3.0, 1.0), (0.0, 3.0), (0.0, 99.0)], [(0, 0)] * 3, [5, 5, 5])
    mask = given.mask.clone()
    mask[2, 3] = False
    given = replace(given, mask=mask)
    own = compute("turn_grpo", given, outcome_weight=0.0, by_std=False)
    close(own, [[2.0, 2.0, 0.0, -1.0], [-1.0, -1.0, 0.0, 1.0], [-1.0, -1.0, 0.0, 0.0]])
    mixed = compute("turn_grpo", given, outcome_weight=0.25, by_std=False)
    five, two, seven = 5 / 12, 2 / 12, -7 / 12
    close(
        mixed,
        [
            [1.5 + five, 1.5 + five, 0.0, -0.75 + five],
            [-0.75 + two, -0.75 + two, 0.0, 0.75 + two],
            [-0.75 + seven, -0.75 + seven, 0.0, 0.0],
        ],
    )


def test_turn_grpo_with_all_weight_on_the_outcome_is_grpo() -> None:
    given = two_turns([(3.0, 1.0), (0.0, 3.0), (0.0, 1.0)], [(0, 0)] * 3, [5, 5, 5])
    assert torch.equal(compute("turn_grpo", given, outcome_weight=1.0), compute("grpo", given))


def test_reinforce_pp_baseline_whitening_ignores_single_trajectories() -> None:
    given = row_inputs([3.0, 1.0, 500.0], [0, 0, 1])
    advantages = compute("reinforce_pp_baseline", given)[:, 0]
    close(advantages, [ROOT_HALF, -ROOT_HALF, 0.0])
    assert advantages[2] == 0


@pytest.mark.parametrize("name", ["turn_gae", "step_gae", "bi_level_gae"])
def test_turn_level_gae_of_zero_rewards(name: str) -> None:
    """Values 1, 2 in the first turn and 4 in the second; gammas and lambdas 1, but for the token's 0.5."""
    given = replace(
        two_turns([(0.0, 0.0)], [(0, 0)], [0]),
        values=torch.tensor([[1.0, 2.0, math.nan, 4.0]], dtype=torch.float64),
    )
    expected = {
        "turn_gae": [-2.0, -2.0, 0.0, -4.0],
        "step_gae": [-1.0, -1.0, 0.0, -4.0],
        "bi_level_gae": [0.5 * 2.0 - 1.0 + 0.5 * -2.0, -2.0, 0.0, -4.0],
    }
    close(compute(name, given, gamma=0.5), [expected[name]])
