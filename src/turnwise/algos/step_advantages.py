"""Advantages by comparing turns of a group: one number a turn, on all of its tokens."""

import torch
from torch import Tensor

from turnwise.algos.advantage_types import AdvantageInputs, AdvantageParams, AdvantageResult
from turnwise.algos.scan import discounted_returns
from turnwise.algos.stats import GroupStatistics, group_statistics, pair_ids, rounding_error, statistics
from turnwise.algos.turns import Turns, find_turns


def gigpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """episode_weight norm_G(R) + step_weight norm_S(R_k) on the tokens of turn k (GiGPO, Feng et al. 2025).

    R_k is the return from turn k on, discounted by gamma_turn; S are the group's turns that acted in the same state,
    revisits included. norm is (x - mean) / (std + epsilon), or x - mean without `by_std`. An episode counts once in
    norm_G, however many turns it has; a state met once, or unknown (-1), says nothing.
    """
    if inputs.state_ids is None:
        raise ValueError("gigpo needs the states in which turns acted")
    turns = find_turns(inputs.mask, inputs.turn_ids)
    episodes = group_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
    states = turns.at_starts(inputs.state_ids)
    compared = turns.mask & (states >= 0) & (episodes.size > 1)[:, None]
    rewards = inputs.token_rewards
    onwards, sizes = (_onwards(turns.sums(each), turns, params) for each in (rewards, rewards.abs()))
    steps = _compared_turns(onwards, sizes, compared, states, inputs, params)
    mixed = params.episode_weight * _norm(episodes, params)[:, None] + params.step_weight * steps
    return _on_turns(mixed, turns, inputs)


def turn_grpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """(1 - w) norm_G(r_k) + w norm_G(R) on the tokens of turn k, w the outcome_weight (MT-GRPO, Zeng et al. 2025).

    r_k is compared with the group's r_k at the same turn, R with the group's R; norm as in `gigpo`. The paper's
    A_turn + lambda A_outcome is this one at w = lambda / (1 + lambda), times 1 + lambda.
    Members that had stopped before turn k are not in turn k's statistics. When to stop is the policy's choice, so that
    comparison is biased: once the good ones have stopped, the best of the rest looks good.
    """
    turns = find_turns(inputs.mask, inputs.turn_ids)
    episodes = group_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
    rewards, sizes = turns.sums(inputs.token_rewards).double(), turns.sums(inputs.token_rewards.abs())
    own = _compared_turns(rewards, sizes, turns.mask, turns.at_starts(inputs.turn_ids), inputs, params)
    mixed = (1 - params.outcome_weight) * own + params.outcome_weight * _norm(episodes, params)[:, None]
    return _on_turns(mixed, turns, inputs)


def _onwards(rewards: Tensor, turns: Turns, params: AdvantageParams) -> Tensor:
    """[B, K]: the return from each turn on, discounted by turns, in float64."""
    exact = rewards.double()
    return discounted_returns(exact, turns.mask, torch.full_like(exact, params.gamma_turn))


def _compared_turns(
    values: Tensor, sizes: Tensor, compared: Tensor, keys: Tensor, inputs: AdvantageInputs, params: AdvantageParams
) -> Tensor:
    """norm of [B, K] values among the compared turns of a group that have the same key; 0 for other turns.

    `sizes` are the sums of absolute rewards behind the values: they say what is mere rounding.
    """
    groups = inputs.group_ids[:, None].expand_as(keys)[compared]
    rounding = rounding_error(sizes[compared], inputs.token_rewards.dtype)
    found = statistics(values[compared], pair_ids(groups, keys[compared]), rounding)
    return torch.zeros_like(values).masked_scatter(compared, _norm(found, params))


def _norm(found: GroupStatistics, params: AdvantageParams) -> Tensor:
    return found.standardised(params.epsilon) if params.by_std else found.centred


def _on_turns(per_turn: Tensor, turns: Turns, inputs: AdvantageInputs) -> AdvantageResult:
    return AdvantageResult(advantages=turns.spread(per_turn.to(inputs.token_rewards.dtype)))
