"""Generalised advantage estimation over tokens, turns or both, from a critic's values."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from turnwise.algos.advantage_types import Advantage, AdvantageInputs, AdvantageResult, TurnLayout, find_turns
from turnwise.algos.stats import whiten
from turnwise.settings.section import Share

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


def gae_scan(
    rewards: Tensor, values: Tensor, mask: Tensor, discounts: Tensor, lam: float, bootstrap: Tensor | None = None
) -> Tensor:
    """A = delta + d lambda A', delta = r + d V' - V, backwards over each row's steps where the mask is 1. [B, T]

    V' and A' belong to the row's next such step; after the last, V' is `bootstrap` [B] (None: 0). `discounts` weigh
    each step's future: 0 cuts the chain after it. The result is 0 where the mask is 0.
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
    """R = r + d R' over each row's steps where the mask is 1: `gae_scan` with a critic of 0. [B, T]"""
    return gae_scan(rewards, torch.zeros_like(rewards), mask, discounts, lam=1.0)


class Gae(Advantage, kind="gae"):
    """Generalised advantage estimation (Schulman et al. 2016) over the sampled tokens of each trajectory.

    delta = r + gamma V' - V and A = delta + gamma lambda A', backwards; V' and A' belong to the next *sampled* token,
    so observations neither discount nor break the chain.
    """

    along_tokens: ClassVar[bool] = True
    needs_critic: ClassVar[bool] = True
    gamma: Share = 1.0
    """Discount per sampled token."""
    lam: Share = 1.0
    """GAE lambda per token: 1 uses rewards only, lower values rely more on the critic."""
    whiten: bool = True
    """Whiten advantages over the batch, after returns are computed."""

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        values, mask = _values(inputs), inputs.mask
        discounts = torch.full_like(values, self.gamma)
        raw = gae_scan(inputs.token_rewards, values, mask, discounts, self.lam, inputs.bootstrap)
        advantages = whiten(raw, mask) if self.whiten else raw
        return AdvantageResult(advantages=advantages, returns=torch.where(mask, raw + values, 0.0))


class TurnLevelGae(Advantage):
    """GAE with one step per turn. The critic learns the turn's return at each of its tokens."""

    along_tokens: ClassVar[bool] = True
    needs_critic: ClassVar[bool] = True
    gamma_turn: Share | Literal["adaptive"] = 1.0
    """Discount per turn; "adaptive" fits it to how far ahead the critic predicts."""
    lam_turn: Share = 1.0
    """GAE lambda per turn."""
    whiten: bool | Literal["token"] = True
    """Whiten advantages over the batch, after returns are computed. true counts a turn once, token each token."""

    def over_turns(self, inputs: AdvantageInputs, turns: TurnLayout, values: Tensor) -> AdvantageResult:
        """Return the advantages and returns from one value [B, K] per turn."""
        raw = _turn_scan(turns.sums(inputs.token_rewards), values, turns, inputs, self)
        advantages = turns.spread(raw)
        if self.whiten:
            by_token = self.whiten == "token"
            advantages = whiten(advantages, turns.tokens) if by_token else turns.spread(whiten(raw, turns.mask))
        return AdvantageResult(advantages=advantages, returns=turns.spread(raw + values))


class TurnGae(TurnLevelGae, kind="turn_gae"):
    """GAE with a turn as one step, V at its last token e_k (turn-wise GAE of VAGEN, Wang et al. 2025).

    delta_k = r_k + gamma_turn V[e_k+1] - V[e_k] and A_k = delta_k + gamma_turn lambda_turn A_k+1, on all tokens of
    turn k; r_k is the sum of the turn's rewards.
    """

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        turns = find_turns(inputs.mask, inputs.turn_ids)
        return self.over_turns(inputs, turns, turns.at_ends(_values(inputs)))


class StepGae(TurnLevelGae, kind="step_gae"):
    """`turn_gae` with V before the turn's first token: the value of the state, not of the answer (Agent-R1, 2025)."""

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        turns = find_turns(inputs.mask, inputs.turn_ids)
        return self.over_turns(inputs, turns, turns.at_starts(_values(inputs)))


class BiLevelGae(Advantage, kind="bi_level_gae"):
    """Bi-level GAE (VAGEN, Wang et al. 2025): turns first, then the tokens inside each turn.

    Turns: `turn_gae`'s A_k, r_k being the reward at e_k alone. Tokens, backwards from A[e_k] = A_k:
    delta = r' + gamma V' - V, A = delta + gamma lambda A', r' being rewards that are not at a turn's end (a KL term).
    The scan does this with the turn's return A_k + V[e_k] as reward at e_k and no chain from one turn to the next.
    """

    along_tokens: ClassVar[bool] = True
    needs_critic: ClassVar[bool] = True
    gamma: Share = 1.0
    """Discount per sampled token."""
    lam: Share = 1.0
    """GAE lambda per token: 1 uses rewards only, lower values rely more on the critic."""
    gamma_turn: Share | Literal["adaptive"] = 1.0
    """Discount per turn; "adaptive" fits it to how far ahead the critic predicts."""
    lam_turn: Share = 1.0
    """GAE lambda per turn."""
    whiten: bool = True
    """Whiten advantages over the batch, after returns are computed."""

    def compute(self, inputs: AdvantageInputs) -> AdvantageResult:
        values, mask, turns = _values(inputs), inputs.mask, find_turns(inputs.mask, inputs.turn_ids)
        turn_values = turns.at_ends(values)
        turn_advantages = _turn_scan(turns.at_ends(inputs.token_rewards), turn_values, turns, inputs, self)
        rewards = torch.where(turns.ends, turns.spread(turn_advantages + turn_values), inputs.token_rewards)
        discounts = torch.full_like(values, self.gamma).masked_fill(turns.ends, 0.0)
        raw = gae_scan(rewards, values, mask, discounts, self.lam)
        advantages = whiten(raw, mask) if self.whiten else raw
        return AdvantageResult(advantages=advantages, returns=torch.where(mask, raw + values, 0.0))


def _turn_scan(
    rewards: Tensor, values: Tensor, turns: TurnLayout, inputs: AdvantageInputs, advantage: TurnLevelGae | BiLevelGae
) -> Tensor:
    """A_k from [B, K] rewards and values."""
    discounts = torch.full_like(values, _turn_discount(advantage))
    return gae_scan(rewards, values, turns.mask, discounts, advantage.lam_turn, inputs.bootstrap)


def _turn_discount(advantage: TurnLevelGae | BiLevelGae) -> float:
    if advantage.gamma_turn == "adaptive":
        raise ValueError("An adaptive gamma_turn is replaced by the number of the step before it is used.")
    return advantage.gamma_turn


def _values(inputs: AdvantageInputs) -> Tensor:
    if inputs.values is None:
        raise ValueError("This estimator needs the critic's values.")
    return inputs.values
