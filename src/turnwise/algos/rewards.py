"""Rewards before advantages: normalise returns, combine several rewards, place rewards on tokens.

Returns are normalised against those of their group, their environment or the batch. Every trajectory counts once,
however many turns or samples it became. Equal returns, or a single one in its scope, give exactly 0 (but `identity`).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from turnwise.algos.advantage_types import find_turns
from turnwise.algos.stats import GroupStatistics, group_statistics, whiten

ASYM_CLIP = (-1.0, 3.0)


PROCESS_EPSILON = 1e-6


def identity(scope: GroupStatistics) -> Tensor:
    """x, unchanged."""
    return scope.values


def mean(scope: GroupStatistics) -> Tensor:
    """x - mean."""
    return scope.centred


def mean_std(scope: GroupStatistics) -> Tensor:
    """(x - mean) / (std + 1e-6), 0 where the std is at most 1e-6."""
    return scope.standardised()


def asym_clip(scope: GroupStatistics) -> Tensor:
    """`mean_std` clamped to [-1, 3]: a rare success may stand out, a rare failure may not."""
    return scope.standardised().clamp(*ASYM_CLIP)


NORMALISERS: dict[str, Callable[[GroupStatistics], Tensor]] = {
    "identity": identity,
    "mean": mean,
    "mean_std": mean_std,
    "asym_clip": asym_clip,
}


def by_group(group_ids: Tensor, env_ids: Tensor) -> Tensor:
    """Compare with trajectories from the same start state."""
    return group_ids


def by_environment(group_ids: Tensor, env_ids: Tensor) -> Tensor:
    """Compare with all trajectories of the same environment."""
    return env_ids


def by_batch(group_ids: Tensor, env_ids: Tensor) -> Tensor:
    """Compare with all trajectories."""
    return torch.zeros_like(group_ids)


SCOPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "group": by_group,
    "environment": by_environment,
    "batch": by_batch,
}


def normalise(returns: Tensor, scope_ids: Tensor, name: str) -> Tensor:
    """Normalise returns [B] within equal scope ids [B]; `name` is a key of NORMALISERS."""
    return NORMALISERS[name](group_statistics(returns, scope_ids)).to(returns.dtype)


def combine_rewards(rewards: Tensor, weights: Tensor, group_ids: Tensor, name: str = "mean_std") -> Tensor:
    """Combine several rewards [B, R] into one per trajectory [B] (GDPO, Liu et al. 2026).

    Each reward is normalised within its group, weighted [R] and summed; the sum is whitened over the batch. If they
    were summed first, the reward with the largest spread would dominate the group's std.
    """
    if rewards.shape != (group_ids.shape[0], weights.shape[0]):
        raise ValueError(
            f"rewards have shape {tuple(rewards.shape)}; expected one row per trajectory and one column per weight."
        )
    columns = [normalise(column, group_ids, name) * weight for column, weight in zip(rewards.T, weights, strict=True)]
    total = torch.stack(columns, dim=1).sum(dim=1)
    return whiten(total, torch.ones_like(total, dtype=torch.bool))


def scale_process_rewards(process_rewards: Tensor, mask: Tensor) -> Tensor:
    """r / (max over the batch of |sum of r from a token on| + 1e-6), to be added to the outcome. [B, T]

    Scaling of PRIME (Cui et al. 2025): process rewards never sum to more than 1, however many turns there are.
    """
    rewards = torch.where(mask, process_rewards, 0.0)
    onwards = rewards.flip(1).cumsum(dim=1)
    largest = onwards.abs().max() if onwards.numel() else 0.0
    return rewards / (largest + PROCESS_EPSILON)


def place_by_turn(turn_rewards: Tensor, mask: Tensor, turn_ids: Tensor) -> Tensor:
    """Place turn rewards [B, N] (0 beyond a row's last turn) on each turn's last sampled token. [B, T]

    The reward of a turn without tokens in the mask goes to the last turn before it that has some, or else to the first.
    """
    turns = find_turns(mask, turn_ids)
    ids = torch.where(turns.mask, turns.at_starts(turn_ids), turn_rewards.shape[1])  # [B, K], ascending
    numbers = torch.arange(turn_rewards.shape[1], device=mask.device).repeat(len(ids), 1)
    owner = (torch.searchsorted(ids, numbers, right=True) - 1).clamp(min=0)
    owned = turn_rewards.new_zeros(ids.shape).scatter_add(1, owner, turn_rewards)
    return torch.where(turns.ends, turns.spread(owned), 0.0)


def place_by_trajectory(turn_rewards: Tensor, mask: Tensor, turn_ids: Tensor) -> Tensor:
    """Place the sum of a row's turn rewards on its last sampled token. [B, T]"""
    return place_returns(turn_rewards.sum(dim=1), mask)


PLACEMENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "turn": place_by_turn,
    "trajectory": place_by_trajectory,
}


def place_returns(returns: Tensor, mask: Tensor) -> Tensor:
    """Place each row's return [B] on its last sampled token. [B, T]"""
    last = mask & (mask.flip(1).cumsum(dim=1).flip(1) == 1)
    return torch.where(last, returns[:, None], 0.0)
