"""Rewards before advantages: normalise returns, combine several rewards, place rewards on tokens.

Returns are normalised against those of their group, their environment or the batch. Every trajectory counts once,
however many turns or samples it became. Equal returns, or a single one in its scope, give exactly 0 (but `identity`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from turnwise.algos.advantage_types import find_turns
from turnwise.algos.stats import GroupStatistics, group_statistics, whiten
from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import GROUPS, PLAIN_RETURNS, Lack, Need

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch

ASYM_CLIP = (-1.0, 3.0)


PROCESS_EPSILON = 1e-6


class Normalisation(Choice):
    """Normalisation of trajectory returns before the advantages."""

    @property
    def compares_members(self) -> bool:
        """Normalises within groups."""
        return False

    @abstractmethod
    def normalise(self, returns: Tensor, group_ids: Tensor, env_ids: Tensor) -> Tensor:
        """Normalise returns [B]."""


class Identity(Normalisation, kind="identity"):
    """x, unchanged."""

    def normalise(self, returns: Tensor, group_ids: Tensor, env_ids: Tensor) -> Tensor:
        return returns


class ScopedNormalisation(Normalisation):
    """Normalisation over a set of trajectories."""

    over: Literal["group", "environment", "batch"] = "group"
    """Set of trajectories that returns are normalised over: of one task, of one environment, or all."""

    @property
    def compares_members(self) -> bool:
        return self.over == "group"

    def needs(self) -> list[Need]:
        why = f"algo.normalise {self.kind} over groups of 1 makes every return 0"
        return [Need(GROUPS, why, "set algo.normalise.over to batch")] if self.compares_members else []

    def lacks(self) -> dict[str, Lack]:
        leave = "set algo.normalise to identity"
        return {PLAIN_RETURNS: Lack(f"algo.normalise {self.kind}", "normalises returns", leave)}

    def normalise(self, returns: Tensor, group_ids: Tensor, env_ids: Tensor) -> Tensor:
        scopes = {"group": group_ids, "environment": env_ids, "batch": torch.zeros_like(group_ids)}
        return self.within(group_statistics(returns, scopes[self.over])).to(returns.dtype)

    @abstractmethod
    def within(self, scope: GroupStatistics) -> Tensor: ...


class Mean(ScopedNormalisation, kind="mean"):
    """x - mean."""

    def within(self, scope: GroupStatistics) -> Tensor:
        return scope.centred


class MeanStd(ScopedNormalisation, kind="mean_std"):
    """(x - mean) / (std + 1e-6), 0 where the std is at most 1e-6."""

    def within(self, scope: GroupStatistics) -> Tensor:
        return scope.standardised()


class AsymClip(ScopedNormalisation, kind="asym_clip"):
    """`mean_std` clamped to [-1, 3]: a rare success may stand out, a rare failure may not."""

    def within(self, scope: GroupStatistics) -> Tensor:
        return scope.standardised().clamp(*ASYM_CLIP)


NORMALISATIONS: dict[str, type[Normalisation]] = choices(Identity, Mean, MeanStd, AsymClip)


def combine_rewards(rewards: Tensor, weights: Tensor, group_ids: Tensor) -> Tensor:
    """Combine several rewards [B, R] into one per trajectory [B] (GDPO, Liu et al. 2026).

    Each reward is normalised within its group, weighted [R] and summed; the sum is whitened over the batch. If they
    were summed first, the reward with the largest spread would dominate the group's std.
    """
    if rewards.shape != (group_ids.shape[0], weights.shape[0]):
        raise ValueError(
            f"rewards have shape {tuple(rewards.shape)}; expected one row per trajectory and one column per weight."
        )
    columns = [
        MeanStd().normalise(column, group_ids, group_ids) * weight
        for column, weight in zip(rewards.T, weights, strict=True)
    ]
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
