"""Rewards on their way to tokens: combined, normalised, placed. Rows are trajectories, columns their sampled tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.normalisation import SCOPES, combine_rewards, normalise
from turnwise.algos.placement import PLACEMENTS, place_returns, scale_process_rewards
from turnwise.core.trajectory import Trajectory
from turnwise.data.table import TokenTable
from turnwise.rewards.scoring import ENV, FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    placement: str
    normalise: str
    normalise_over: str
    process: bool
    """Scale the rewards of turns before the last by their largest sum in the batch."""
    each: dict[str, float] | None
    """Rewards that are normalised one by one, and their weights; None: they were added up."""


def token_rewards(
    trajectories: Sequence[Trajectory], table: TokenTable, group_ids: Tensor, settings: RewardSettings
) -> Tensor:
    """What each sampled token earned. [B, S]"""
    if settings.each is not None:
        columns = torch.tensor([[_total(each, name) for name in settings.each] for each in trajectories])
        weights = torch.tensor(list(settings.each.values()))
        return place_returns(combine_rewards(columns, weights, group_ids), table.mask)
    turns, turn_ids = turn_matrix(trajectories), env_turn_ids(trajectories, table)
    if settings.process:
        last = torch.tensor([each.num_turns - 1 for each in trajectories]).clamp(min=0)
        outcomes = place_returns(turns.gather(1, last[:, None])[:, 0], table.mask)
        placed = PLACEMENTS["turn"](turns, table.mask, turn_ids)
        return scale_process_rewards(placed - outcomes, table.mask) + outcomes
    if settings.normalise == "identity":
        return PLACEMENTS[settings.placement](turns, table.mask, turn_ids)
    scope = SCOPES[settings.normalise_over](group_ids, environment_ids(trajectories))
    return place_returns(normalise(turns.sum(dim=1), scope, settings.normalise), table.mask)


def _total(trajectory: Trajectory, name: str) -> float:
    """The format penalty is part of the environment's reward."""
    penalty = trajectory.rewards[FORMAT] if name == ENV else 0.0
    return trajectory.rewards[name] + penalty


def turn_matrix(trajectories: Sequence[Trajectory]) -> Tensor:
    """Rewards by environment turn, 0 beyond a trajectory's last. [B, N]"""
    rows = [[0.0] * max(1, *(each.num_turns for each in trajectories)) for _ in trajectories]
    for row, trajectory in zip(rows, trajectories, strict=True):
        for number, reward in zip(trajectory.env_turn_ids, trajectory.turn_rewards, strict=True):
            row[number] += reward
    return torch.tensor(rows)


def env_turn_ids(trajectories: Sequence[Trajectory], table: TokenTable) -> Tensor:
    """The environment turn that each token belongs to: see `Trajectory.env_turn_ids`. [B, S]"""
    return _by_turn([each.env_turn_ids for each in trajectories], table)


def environment_ids(trajectories: Sequence[Trajectory]) -> Tensor:
    """A number for each environment tag. [B]"""
    names = {each.task.env: number for number, each in enumerate(trajectories)}
    return torch.tensor([names[each.task.env] for each in trajectories])


def state_ids(trajectories: Sequence[Trajectory], table: TokenTable) -> Tensor:
    """A number for the state in which each token's turn acted, equal where the environment says so; -1: it does not."""
    numbers: dict[str, int] = {}
    return _by_turn([_states(each, numbers) for each in trajectories], table)


def _by_turn(of_turns: Sequence[Sequence[int]], table: TokenTable) -> Tensor:
    """A number of each turn of each trajectory, on its tokens; -1 elsewhere. [B, S]"""
    columns = [torch.tensor(numbers) for numbers in of_turns]
    return table.matrix([columns[each.trajectory][each.turn_ids[each.mask]] for each in table.samples], fill=-1)


def _states(trajectory: Trajectory, numbers: dict[str, int]) -> list[int]:
    """A summary acts in the state of the environment turn that it belongs to."""
    acted = [turn for turn in trajectory.turns if not turn.aside]
    known = [_number(turn.info.get("state"), numbers) for turn in acted] or [-1]
    return [known[turn] for turn in trajectory.env_turn_ids]


def _number(state: str | None, numbers: dict[str, int]) -> int:
    return -1 if state is None else numbers.setdefault(state, len(numbers))
