"""Advantages from a trajectory's own rewards: no critic, no comparison within a group."""

import torch

from turnwise.algos.advantage_types import AdvantageInputs, AdvantageParams, AdvantageResult, on_all_tokens
from turnwise.algos.scan import discounted_returns
from turnwise.algos.stats import group_statistics
from turnwise.algos.turns import find_turns
from turnwise.algos.whitening import whiten


def reinforce(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """The discounted return from each sampled token on, without a baseline (Williams 1992).

    R = r + gamma R', and R = r + gamma gamma_turn R' at a turn's end. With gamma 1 a turn's tokens share one return,
    discounted by turns only. Observations neither discount nor cut.
    """
    ends = find_turns(inputs.mask, inputs.turn_ids).ends
    discounts = torch.full_like(inputs.token_rewards, params.gamma)
    discounts = torch.where(ends, discounts * params.gamma_turn, discounts)
    return AdvantageResult(advantages=discounted_returns(inputs.token_rewards, inputs.mask, discounts))


def reinforce_pp(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """`reinforce`'s returns, whitened over all sampled tokens of the batch (REINFORCE++, Hu 2025).

    The paper's reward is the outcome at the last token minus beta kl at each, which is how rewards are placed for it
    (`Advantage.outcome_less_kl`).
    """
    return AdvantageResult(advantages=whiten(reinforce(inputs, params).advantages, inputs.mask))


def remax(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Undiscounted return from each sampled token on, minus the greedy rollout's return (ReMax, Li et al. 2023).

    Where the reward comes at the end, as the paper assumes, that is R minus the greedy R on all tokens.
    """
    if inputs.baseline is None:
        raise ValueError("remax needs the return of each group's greedy rollout as baseline")
    returns = discounted_returns(inputs.token_rewards, inputs.mask, torch.ones_like(inputs.token_rewards))
    return AdvantageResult(advantages=torch.where(inputs.mask, returns - inputs.baseline[:, None].to(returns), 0.0))


def arpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """The raw return R on all tokens (RAGEN's first family: identity normalisation)."""
    return on_all_tokens(group_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids).values, inputs)


def brpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """(R - mean) / (std + epsilon) over the whole batch, each trajectory once (RAGEN's first family).

    It assumes that tasks are alike: an easy task's trajectories all look good beside a hard one's.
    """
    batch = group_statistics(inputs.token_rewards, inputs.mask, torch.zeros_like(inputs.group_ids))
    return on_all_tokens(batch.standardised(params.epsilon), inputs)
