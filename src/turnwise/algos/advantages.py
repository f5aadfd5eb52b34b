"""Advantages: how much better than expected each sampled token turned out. Rows are whole trajectories.

    mask           1 1 0 0 1 1 1 0     two turns and the observation between them, padded at the end
    token_rewards  . r . . . . r .     a turn's reward sits on its last sampled token
    turn_ids       0 0 . . 1 1 1 .
    values         V V . . V V V .     before the token was chosen

What stands where the mask is 0 is never read.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnwise.algos.stats import group_statistics
from turnwise.algos.whitening import whiten


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    mask: Tensor  # [B, T] bool, 1 on sampled tokens
    token_rewards: Tensor  # [B, T]
    group_ids: Tensor  # [B] int64, in any order
    turn_ids: Tensor  # [B, T] int64
    values: Tensor | None = None  # [B, T]
    """The critic's; None where the estimator needs none."""
    bootstrap: Tensor | None = None  # [B]
    """Value after the last token, 0 but for rows that a token or time limit cut; None: all 0."""

    def __post_init__(self) -> None:
        given = (self.token_rewards, self.turn_ids) + ((self.values,) if self.values is not None else ())
        if any(tensor.shape != self.mask.shape for tensor in given) or self.mask.dtype != torch.bool:
            raise ValueError("mask must be bool, and rewards, turn ids and values of its shape")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageParams:
    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = False
    """Of estimators with a critic: whiten over all sampled tokens, after the returns are taken."""
    epsilon: float = 1e-6
    """Added to what a formula divides by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageResult:
    advantages: Tensor  # [B, T], 0 where the mask is 0
    returns: Tensor | None = None  # [B, T], what the critic learns; None: no critic


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantage:
    compute: Callable[[AdvantageInputs, AdvantageParams], AdvantageResult]
    needs_critic: bool = False
    needs_groups: bool = False
    """Compares members of a group: a group of one teaches nothing."""


def gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Generalised advantage estimation (Schulman et al. 2016) over the sampled tokens of each trajectory.

    delta = r + gamma V' - V and A = delta + gamma lambda A', backwards; V' and A' are those of the next *sampled*
    token, so observations neither discount nor break the chain.
    """
    if inputs.values is None:
        raise ValueError("gae needs the critic's values")
    rewards, values, mask = inputs.token_rewards, inputs.values, inputs.mask
    raw = torch.zeros_like(values)
    next_advantage = values.new_zeros(mask.shape[0])
    next_value = next_advantage if inputs.bootstrap is None else inputs.bootstrap.to(values.dtype)
    for t in reversed(range(mask.shape[1])):
        delta = rewards[:, t] + params.gamma * next_value - values[:, t]
        raw[:, t] = delta + params.gamma * params.lam * next_advantage
        next_advantage = torch.where(mask[:, t], raw[:, t], next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
    advantages = whiten(raw, mask) if params.whiten else torch.where(mask, raw, 0.0)
    return AdvantageResult(advantages=advantages, returns=torch.where(mask, raw + values, 0.0))


def grpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """(R - mean) / (std + epsilon) within the group, the same on all of a trajectory's tokens (Shao et al. 2024)."""
    group = group_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
    return _on_all_tokens(group.centred / (group.std + params.epsilon), inputs)


def dr_grpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - mean within the group: without the std, easy and hard tasks keep their weight (Liu et al. 2025)."""
    group = group_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
    return _on_all_tokens(group.centred, inputs)


def rloo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - mean of the *other* members = n / (n - 1) (R - mean), an unbiased baseline (Ahmadian et al. 2024)."""
    group = group_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
    return _on_all_tokens(group.centred * group.size / (group.size - 1).clamp(min=1), inputs)


def reinforce_pp(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """The discounted return from each sampled token on, whitened over all of them (REINFORCE++, Hu 2025).

    Neither a critic nor groups: it is gae where the critic says 0 and lambda is 1.
    """
    without_critic = replace(inputs, values=torch.zeros_like(inputs.token_rewards), bootstrap=None)
    returns = gae(without_critic, replace(params, lam=1.0, whiten=False)).advantages
    return AdvantageResult(advantages=whiten(returns, inputs.mask))


def _on_all_tokens(per_trajectory: Tensor, inputs: AdvantageInputs) -> AdvantageResult:
    column = per_trajectory.to(inputs.token_rewards.dtype)[:, None]
    return AdvantageResult(advantages=torch.where(inputs.mask, column, 0.0))


ADVANTAGES: dict[str, Advantage] = {
    "gae": Advantage(compute=gae, needs_critic=True),
    "grpo": Advantage(compute=grpo, needs_groups=True),
    "dr_grpo": Advantage(compute=dr_grpo, needs_groups=True),
    "rloo": Advantage(compute=rloo, needs_groups=True),
    "reinforce_pp": Advantage(compute=reinforce_pp),
}
