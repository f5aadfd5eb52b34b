"""The one recursion that all time-discounted estimators are made of."""

import torch
from torch import Tensor


def gae_scan(
    rewards: Tensor, values: Tensor, mask: Tensor, discounts: Tensor, lam: float, bootstrap: Tensor | None = None
) -> Tensor:
    """A = delta + d lambda A', delta = r + d V' - V, backwards over each row's steps where the mask is 1. [B, T]

    V' and A' are those of the row's next such step; after the last, V' is `bootstrap` [B] (None: 0). `discounts` is
    what each step's future is worth: 0 cuts the chain after it. 0 where the mask is 0, and nothing there is read.
    """
    raw = torch.zeros_like(values)
    next_advantage = values.new_zeros(mask.shape[0])
    next_value = next_advantage if bootstrap is None else bootstrap.to(values.dtype)
    for t in reversed(range(mask.shape[1])):
        here, discount = mask[:, t], discounts[:, t]
        delta = rewards[:, t] + discount * next_value - values[:, t]
        raw[:, t] = delta + discount * lam * next_advantage
        next_advantage = torch.where(here, raw[:, t], next_advantage)
        next_value = torch.where(here, values[:, t], next_value)
    return torch.where(mask, raw, 0.0)


def discounted_returns(rewards: Tensor, mask: Tensor, discounts: Tensor) -> Tensor:
    """R = r + d R' over each row's steps where the mask is 1: the scan of a critic that says 0. [B, T]"""
    return gae_scan(rewards, torch.zeros_like(rewards), mask, discounts, lam=1.0)
