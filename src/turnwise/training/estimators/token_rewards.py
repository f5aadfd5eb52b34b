"""Rewards of trajectories placed on their sampled tokens, and the turns and states of these tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.normalisation import (
    PLACEMENTS,
    Identity,
    Normalisation,
    combine_rewards,
    place_returns,
    scale_process_rewards,
)
from turnwise.core.trajectory import Trajectory
from turnwise.data.samples import (
    TokenTable,
)
from turnwise.rewards.scoring import ENV, FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    placement: str
    normalise: Normalisation
    process: bool
    """Scale the rewards before the last turn by their largest sum in the batch."""
    separate: dict[str, float] | None
    """Weights of rewards that are normalised separately, by name; None if rewards are summed first."""


def token_rewards(
    trajectories: Sequence[Trajectory], table: TokenTable, group_ids: Tensor, settings: RewardSettings
) -> Tensor:
    """Return the reward of each sampled token. [B, S]"""
    if settings.separate is not None:
        columns = torch.tensor(
            [[_total(trajectory, name) for name in settings.separate] for trajectory in trajectories]
        )
        weights = torch.tensor(list(settings.separate.values()))
        return place_returns(combine_rewards(columns, weights, group_ids), table.mask)
    turns, turn_ids = turn_matrix(trajectories), env_turn_ids(trajectories, table)
    if settings.process:
        last = torch.tensor([trajectory.num_turns - 1 for trajectory in trajectories]).clamp(min=0)
        outcomes = place_returns(turns.gather(1, last[:, None])[:, 0], table.mask)
        placed = PLACEMENTS["turn"](turns, table.mask, turn_ids)
        return scale_process_rewards(placed - outcomes, table.mask) + outcomes
    if isinstance(settings.normalise, Identity):
        return PLACEMENTS[settings.placement](turns, table.mask, turn_ids)
    returns = settings.normalise.normalise(turns.sum(dim=1), group_ids, environment_ids(trajectories))
    return place_returns(returns, table.mask)


def _total(trajectory: Trajectory, name: str) -> float:
    """Return the trajectory's reward of this name; the environment's includes the format penalty."""
    penalty = trajectory.rewards[FORMAT] if name == ENV else 0.0
    return trajectory.rewards[name] + penalty


def turn_matrix(trajectories: Sequence[Trajectory]) -> Tensor:
    """Return the rewards by environment turn, 0 after a trajectory's last turn. [B, N]"""
    width = max(1, *(trajectory.num_turns for trajectory in trajectories))
    rows = [[0.0] * width for _ in trajectories]
    for row, trajectory in zip(rows, trajectories, strict=True):
        for number, reward in zip(trajectory.env_turn_ids, trajectory.turn_rewards, strict=True):
            row[number] += reward
    return torch.tensor(rows)


def env_turn_ids(trajectories: Sequence[Trajectory], table: TokenTable) -> Tensor:
    """Return the environment turn of each sampled token; see `Trajectory.env_turn_ids`. [B, S]"""
    return _spread_over_tokens([trajectory.env_turn_ids for trajectory in trajectories], table)


def environment_ids(trajectories: Sequence[Trajectory]) -> Tensor:
    """Return an index of each trajectory's environment. [B]"""
    names = {trajectory.task.env: number for number, trajectory in enumerate(trajectories)}
    return torch.tensor([names[trajectory.task.env] for trajectory in trajectories])


def state_ids(trajectories: Sequence[Trajectory], table: TokenTable) -> Tensor:
    """Return an index of the state in which each token's turn acted, named by the environment; -1: unnamed. [B, S]"""
    indices: dict[str, int] = {}
    return _spread_over_tokens([_state_indices(trajectory, indices) for trajectory in trajectories], table)


def _spread_over_tokens(numbers_by_turn: Sequence[Sequence[int]], table: TokenTable) -> Tensor:
    """Give each sampled token the number of its turn; -1 elsewhere. [B, S]"""
    columns = [torch.tensor(numbers) for numbers in numbers_by_turn]
    return table.to_matrix(
        [columns[sample.trajectory][sample.turn_ids[sample.mask]] for sample in table.samples], fill=-1
    )


def _state_indices(trajectory: Trajectory, indices: dict[str, int]) -> list[int]:
    """Return the state index of each turn. A summary has the state of the environment turn that it belongs to."""
    states = [turn.info.get("state") for turn in trajectory.turns if not turn.is_summary]
    known = [-1 if state is None else indices.setdefault(state, len(indices)) for state in states] or [-1]
    return [known[turn] for turn in trajectory.env_turn_ids]
