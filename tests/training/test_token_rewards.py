"""Rewards on their way to tokens."""

from typing import Any

import torch
from hypothesis import given

from episodes_for_tests import trajectories, trajectory_of, turn_of
from turnwise.algos.normalisation import Identity, Mean
from turnwise.core.trajectory import Trajectory
from turnwise.data.samples import TokenTable, build_samples
from turnwise.training.estimators.token_rewards import RewardSettings, state_ids, token_rewards

PLAIN = RewardSettings(placement="turn", normalise=Identity(), process=False, separate=None)


def table_of(given: list[Trajectory]) -> TokenTable:
    return TokenTable(build_samples(given), len(given))


def rewards_of(given: list[Trajectory], groups: list[int] | None = None, **changes: Any) -> torch.Tensor:
    settings = RewardSettings(**{name: getattr(PLAIN, name) for name in RewardSettings.__slots__} | changes)
    return token_rewards(given, table_of(given), torch.tensor(groups or [0] * len(given)), settings)


@given(trajectories())
def test_turn_reward_is_on_its_last_sampled_token(given: list[Trajectory]) -> None:
    """Turn by turn, zero rewards too: a turn's end is known from the turn, not from a reward that is not 0."""
    matrix = rewards_of(given)
    expected = torch.zeros_like(matrix)
    for row, trajectory in enumerate(given):
        end = -1
        for turn, reward in zip(trajectory.turns, trajectory.turn_rewards, strict=True):
            end += len(turn.action_ids)
            expected[row, end] = reward
    assert torch.equal(matrix, expected)


TWO_TURNS = [turn_of([3], [4, 5], extends=False, reward=1.0), turn_of([6], [7], reward=2.0)]
ONE_TURN = [turn_of([3], [4], extends=False, reward=1.0)]


def test_placement_trajectory_puts_rewards_on_the_last_token() -> None:
    given = [trajectory_of(TWO_TURNS), trajectory_of(ONE_TURN)]
    assert rewards_of(given, placement="trajectory").tolist() == [[0, 0, 3], [1, 0, 0]]


def test_process_rewards_are_scaled_and_outcomes_are_not() -> None:
    three = [*TWO_TURNS, turn_of([8], [9], reward=0.5)]
    given = [trajectory_of(three), trajectory_of(ONE_TURN)]
    found = rewards_of(given, process=True)
    torch.testing.assert_close(found, torch.tensor([[0, 1 / 3, 2 / 3, 0.5], [1, 0, 0, 0]]))


def test_returns_are_normalised_over_the_chosen_scope() -> None:
    given = [trajectory_of(TWO_TURNS), trajectory_of(ONE_TURN), trajectory_of(ONE_TURN)]
    by_group = rewards_of(given, [0, 0, 1], normalise=Mean())
    assert by_group.tolist() == [[0, 0, 1], [-1, 0, 0], [0, 0, 0]]
    by_batch = rewards_of(given, [0, 0, 1], normalise=Mean(over="batch"))
    torch.testing.assert_close(by_batch[:, 0], torch.tensor([0.0, -2 / 3, -2 / 3]))
    torch.testing.assert_close(by_batch[:, 2], torch.tensor([4 / 3, 0.0, 0.0]))


def test_state_ids_follow_the_environments_names() -> None:
    def turn(state: str | None, sampled: list[int], **others: Any) -> Any:
        return turn_of([3], sampled, info={} if state is None else {"state": state}, **others)

    given = [
        trajectory_of([turn("a", [4, 5], extends=False), turn("b", [6])]),
        trajectory_of([turn("b", [4], extends=False), turn(None, [6, 7])]),
    ]
    found = state_ids(given, table_of(given))
    assert found.tolist() == [[0, 0, 1], [1, -1, -1]]
