"""Advantages with a critic: generalised advantage estimation over tokens, over turns, and over both."""

import torch
from torch import Tensor

from turnwise.algos.advantage_types import AdvantageInputs, AdvantageParams, AdvantageResult
from turnwise.algos.scan import gae_scan
from turnwise.algos.turns import Turns, find_turns
from turnwise.algos.whitening import whiten


def gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Generalised advantage estimation (Schulman et al. 2016) over the sampled tokens of each trajectory.

    delta = r + gamma V' - V and A = delta + gamma lambda A', backwards; V' and A' are those of the next *sampled*
    token, so observations neither discount nor break the chain.
    """
    values, mask = _values(inputs), inputs.mask
    discounts = torch.full_like(values, params.gamma)
    raw = gae_scan(inputs.token_rewards, values, mask, discounts, params.lam, inputs.bootstrap)
    advantages = whiten(raw, mask) if params.whiten else raw
    return AdvantageResult(advantages=advantages, returns=torch.where(mask, raw + values, 0.0))


def turn_gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """GAE with a turn as one step, V at its last token e_k (turn-wise GAE of VAGEN, Wang et al. 2025).

    delta_k = r_k + gamma_turn V[e_k+1] - V[e_k] and A_k = delta_k + gamma_turn lambda_turn A_k+1, on all tokens of
    turn k; r_k is all that the turn's tokens earned.
    """
    turns = find_turns(inputs.mask, inputs.turn_ids)
    return _over_turns(inputs, params, turns, turns.at_ends(_values(inputs)))


def step_gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """`turn_gae` with V before the turn's first token: what the state was worth, not the answer (Agent-R1, 2025)."""
    turns = find_turns(inputs.mask, inputs.turn_ids)
    return _over_turns(inputs, params, turns, turns.at_starts(_values(inputs)))


def bi_level_gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Bi-level GAE (VAGEN, Wang et al. 2025): turns first, then the tokens inside each turn.

    Turns: `turn_gae`'s A_k, r_k being the reward at e_k alone. Tokens, backwards from A[e_k] = A_k:
    delta = r' + gamma V' - V, A = delta + gamma lambda A', r' being rewards that are not at a turn's end (a KL term).
    The scan gets there with the turn's return A_k + V[e_k] as reward at e_k and no chain from one turn to the next.
    """
    values, mask, turns = _values(inputs), inputs.mask, find_turns(inputs.mask, inputs.turn_ids)
    turn_values = turns.at_ends(values)
    turn_advantages = _turn_scan(turns.at_ends(inputs.token_rewards), turn_values, turns, inputs, params)
    rewards = torch.where(turns.ends, turns.spread(turn_advantages + turn_values), inputs.token_rewards)
    discounts = torch.full_like(values, params.gamma).masked_fill(turns.ends, 0.0)
    raw = gae_scan(rewards, values, mask, discounts, params.lam)
    advantages = whiten(raw, mask) if params.whiten else raw
    return AdvantageResult(advantages=advantages, returns=torch.where(mask, raw + values, 0.0))


def _over_turns(inputs: AdvantageInputs, params: AdvantageParams, turns: Turns, values: Tensor) -> AdvantageResult:
    """One step a turn. The critic learns the turn's return at each of its tokens."""
    raw = _turn_scan(turns.sums(inputs.token_rewards), values, turns, inputs, params)
    advantages = turns.spread(raw)
    if params.whiten:
        by_token = params.whiten_over == "token"
        advantages = whiten(advantages, turns.tokens) if by_token else turns.spread(whiten(raw, turns.mask))
    return AdvantageResult(advantages=advantages, returns=turns.spread(raw + values))


def _turn_scan(
    rewards: Tensor, values: Tensor, turns: Turns, inputs: AdvantageInputs, params: AdvantageParams
) -> Tensor:
    """A_k from [B, K] rewards and values."""
    discounts = torch.full_like(values, params.gamma_turn)
    return gae_scan(rewards, values, turns.mask, discounts, params.lam_turn, inputs.bootstrap)


def _values(inputs: AdvantageInputs) -> Tensor:
    if inputs.values is None:
        raise ValueError("this estimator needs the critic's values")
    return inputs.values
