"""Rewards on their way to tokens: where they are placed, which tokens the advantage sees."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from turnwise.algos.advantage_types import AdvantageInputs
from turnwise.algos.turns import find_turns

PROCESS_EPSILON = 1e-6


def place_by_turn(turn_rewards: Tensor, mask: Tensor, turn_ids: Tensor) -> Tensor:
    """Rewards [B, N] of turns 0 to N - 1 (0 beyond a row's last), each on its turn's last sampled token. [B, T]

    Nothing is lost: the reward of a turn that has no token in the mask goes to the last turn before it that has, or
    else to the first.
    """
    turns = find_turns(mask, turn_ids)
    ids = torch.where(turns.mask, turns.at_starts(turn_ids), turn_rewards.shape[1])  # [B, K], ascending
    numbers = torch.arange(turn_rewards.shape[1], device=mask.device).repeat(len(ids), 1)
    owner = (torch.searchsorted(ids, numbers, right=True) - 1).clamp(min=0)
    owned = turn_rewards.new_zeros(ids.shape).scatter_add(1, owner, turn_rewards)
    return torch.where(turns.ends, turns.spread(owned), 0.0)


def place_whole(turn_rewards: Tensor, mask: Tensor, turn_ids: Tensor) -> Tensor:
    """The sum of a row's turn rewards on its last sampled token: turns share one outcome. [B, T]"""
    return place_returns(turn_rewards.sum(dim=1), mask)


PLACEMENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"turn": place_by_turn, "trajectory": place_whole}


def place_returns(returns: Tensor, mask: Tensor) -> Tensor:
    """Each row's number [B] on its last sampled token. [B, T]"""
    last = mask & (mask.flip(1).cumsum(dim=1).flip(1) == 1)
    return torch.where(last, returns[:, None], 0.0)


def scale_process_rewards(process_rewards: Tensor, mask: Tensor) -> Tensor:
    """r / (max over the batch of |sum of r from a token on| + 1e-6), to be added to the outcome. [B, T]

    PRIME's scaling (Cui et al. 2025): however many calls a trajectory makes, they never add up to more than 1.
    """
    rewards = torch.where(mask, process_rewards, 0.0)
    onwards = rewards.flip(1).cumsum(dim=1)
    largest = onwards.abs().max() if onwards.numel() else 0.0
    return rewards / (largest + PROCESS_EPSILON)


def restrict(inputs: AdvantageInputs, advantage_mask: Tensor) -> AdvantageInputs:
    """The inputs of an estimator that runs along some of the sampled tokens: thinking, answers, or what a rule chose.

    The loss has a mask of its own. Tokens that are left out get advantage 0 and are passed over as observations are:
    what is earned between two tokens that are left in is the first one's reward (the first of all also gets what came
    before it). So a turn's reward outlives its last token, and a trajectory's return does not depend on the mask.
    """
    mask = inputs.mask & advantage_mask
    places = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    before = torch.where(mask, places, -1).cummax(dim=1).values
    target = torch.where(before < 0, mask.long().argmax(dim=1, keepdim=True), before)
    sampled = torch.where(inputs.mask, inputs.token_rewards, 0.0)
    moved = torch.zeros_like(sampled).scatter_add(1, target, sampled)
    return replace(inputs, mask=mask, token_rewards=moved)
