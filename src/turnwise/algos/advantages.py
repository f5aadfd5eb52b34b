"""Advantages: how much better than expected each sampled token turned out. ADVANTAGES lists the estimators by name.

With a critic: generalised advantage estimation over tokens, turns or both. Within a group: trajectories, or turns,
compared with each other; a group of one and equal returns give exactly 0, except in reinforce_pp_baseline, which then
subtracts the batch's mean. Otherwise: a trajectory's own returns.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from turnwise.algos.advantage_types import (
    Advantage,
    AdvantageInputs,
    AdvantageParams,
    AdvantageResult,
    TurnLayout,
    broadcast_to_tokens,
    find_turns,
)
from turnwise.algos.offline import clone, preference
from turnwise.algos.registry import Function, Registry, declare_traits
from turnwise.algos.stats import (
    GroupStatistics,
    group_statistics,
    pair_ids,
    reduce_by_group,
    return_statistics,
    rounding_error,
    whiten,
)
from turnwise.core.errors import UserError


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


def gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Generalised advantage estimation (Schulman et al. 2016) over the sampled tokens of each trajectory.

    delta = r + gamma V' - V and A = delta + gamma lambda A', backwards; V' and A' belong to the next *sampled* token,
    so observations neither discount nor break the chain.
    """
    values, mask = _values(inputs), inputs.mask
    discounts = torch.full_like(values, params.gamma)
    raw = gae_scan(inputs.token_rewards, values, mask, discounts, params.lam, inputs.bootstrap)
    advantages = whiten(raw, mask) if params.whiten else raw
    return AdvantageResult(advantages=advantages, returns=torch.where(mask, raw + values, 0.0))


def turn_gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """GAE with a turn as one step, V at its last token e_k (turn-wise GAE of VAGEN, Wang et al. 2025).

    delta_k = r_k + gamma_turn V[e_k+1] - V[e_k] and A_k = delta_k + gamma_turn lambda_turn A_k+1, on all tokens of
    turn k; r_k is the sum of the turn's rewards.
    """
    turns = find_turns(inputs.mask, inputs.turn_ids)
    return _over_turns(inputs, params, turns, turns.at_ends(_values(inputs)))


def step_gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """`turn_gae` with V before the turn's first token: the value of the state, not of the answer (Agent-R1, 2025)."""
    turns = find_turns(inputs.mask, inputs.turn_ids)
    return _over_turns(inputs, params, turns, turns.at_starts(_values(inputs)))


def bi_level_gae(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Bi-level GAE (VAGEN, Wang et al. 2025): turns first, then the tokens inside each turn.

    Turns: `turn_gae`'s A_k, r_k being the reward at e_k alone. Tokens, backwards from A[e_k] = A_k:
    delta = r' + gamma V' - V, A = delta + gamma lambda A', r' being rewards that are not at a turn's end (a KL term).
    The scan does this with the turn's return A_k + V[e_k] as reward at e_k and no chain from one turn to the next.
    """
    values, mask, turns = _values(inputs), inputs.mask, find_turns(inputs.mask, inputs.turn_ids)
    turn_values = turns.at_ends(values)
    turn_advantages = _turn_scan(turns.at_ends(inputs.token_rewards), turn_values, turns, inputs, params)
    rewards = torch.where(turns.ends, turns.spread(turn_advantages + turn_values), inputs.token_rewards)
    discounts = torch.full_like(values, params.gamma).masked_fill(turns.ends, 0.0)
    raw = gae_scan(rewards, values, mask, discounts, params.lam)
    advantages = whiten(raw, mask) if params.whiten else raw
    return AdvantageResult(advantages=advantages, returns=torch.where(mask, raw + values, 0.0))


def _over_turns(inputs: AdvantageInputs, params: AdvantageParams, turns: TurnLayout, values: Tensor) -> AdvantageResult:
    """GAE with one step per turn. The critic learns the turn's return at each of its tokens."""
    raw = _turn_scan(turns.sums(inputs.token_rewards), values, turns, inputs, params)
    advantages = turns.spread(raw)
    if params.whiten:
        by_token = params.whiten_over == "token"
        advantages = whiten(advantages, turns.tokens) if by_token else turns.spread(whiten(raw, turns.mask))
    return AdvantageResult(advantages=advantages, returns=turns.spread(raw + values))


def _turn_scan(
    rewards: Tensor, values: Tensor, turns: TurnLayout, inputs: AdvantageInputs, params: AdvantageParams
) -> Tensor:
    """A_k from [B, K] rewards and values."""
    discounts = torch.full_like(values, params.gamma_turn)
    return gae_scan(rewards, values, turns.mask, discounts, params.lam_turn, inputs.bootstrap)


def _values(inputs: AdvantageInputs) -> Tensor:
    if inputs.values is None:
        raise ValueError("This estimator needs the critic's values.")
    return inputs.values


def grpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """(R - mean) / (std + epsilon) within the group (Shao et al. 2024)."""
    return broadcast_to_tokens(_returns(inputs).standardised(params.epsilon), inputs)


def dr_grpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - mean within the group: not dividing by the std keeps the weight of easy and hard tasks (Liu et al. 2025)."""
    return broadcast_to_tokens(_returns(inputs).centred, inputs)


def rloo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - mean of the *other* members = n / (n - 1) (R - mean), an unbiased baseline (Ahmadian et al. 2024)."""
    group = _returns(inputs)
    return broadcast_to_tokens(group.centred * group.size / (group.size - 1).clamp(min=1), inputs)


def reinforce_pp_baseline(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - mean within the group, then whitened over all sampled tokens (REINFORCE++-baseline, Hu 2025).

    Statistics are over tokens, so long trajectories weigh more. A group of one is left out of them.
    """
    compared = inputs.mask & (_returns(inputs).size > 1)[:, None]
    return AdvantageResult(advantages=whiten(dr_grpo(inputs, params).advantages, compared))


def opo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - sum(length R) / sum(length) within the group (OPO, Hao et al. 2025).

    The minimum-variance baseline if a trajectory's squared gradient is proportional to its number of sampled tokens.
    """
    centred, lengths = _returns(inputs).centred, inputs.mask.sum(dim=1).double()
    group = inputs.group_ids.unique(return_inverse=True)[1]
    total = reduce_by_group(lengths, group, "sum").clamp(min=1)
    return broadcast_to_tokens(centred - reduce_by_group(lengths * centred, group, "sum") / total, inputs)


def gpg(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """(B / non-zero) (R - mean) within the group, for the loss -A log pi (GPG, Chu et al. 2025).

    B is the number of trajectories and non-zero that of trajectories with a reward, so a batch with few rewards still
    takes a full step.
    """
    group = _returns(inputs)
    trajectories, earned = inputs.mask.any(dim=1).sum().double(), (group.values != 0).sum().clamp(min=1)
    return broadcast_to_tokens(group.centred * (trajectories / earned), inputs)


def pass_at_k(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R_best - R_second for the group's best member only, over the std (+ epsilon) if `by_std` (Tang et al. 2025).

    The leave-one-out gradient of the group's best reward, which encourages diversity. A tie gives 0.
    """
    group, numbers = _returns(inputs), inputs.group_ids.unique(return_inverse=True)[1]
    scores = torch.where(inputs.mask.any(dim=1), group.centred, -torch.inf)
    best = (scores == reduce_by_group(scores, numbers, "amax")) & (group.size > 1)
    second = reduce_by_group(torch.where(best, -torch.inf, scores), numbers, "amax")
    alone_on_top = best & (reduce_by_group(best.double(), numbers, "sum") == 1)
    gap = torch.where(alone_on_top, scores - second, 0.0)
    return broadcast_to_tokens(gap / (group.std + params.epsilon) if params.by_std else gap, inputs)


def _returns(inputs: AdvantageInputs) -> GroupStatistics:
    return return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)


def gigpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """episode_weight norm_G(R) + step_weight norm_S(R_k) on the tokens of turn k (GiGPO, Feng et al. 2025).

    R_k is the return from turn k on, discounted by gamma_turn; S are the group's turns that acted in the same state,
    revisits included. norm is (x - mean) / (std + epsilon), or x - mean without `by_std`. An episode counts once in
    norm_G, however many turns it has; a state visited once, or unknown (-1), contributes 0.
    """
    if inputs.state_ids is None:
        raise ValueError("gigpo needs state ids: the environment must implement state_key().")
    turns = find_turns(inputs.mask, inputs.turn_ids)
    episodes = return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
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
    Members that stopped before turn k are not in turn k's statistics. The policy chooses when to stop, so this
    comparison is biased: after good members have stopped, the best of the rest looks good.
    """
    turns = find_turns(inputs.mask, inputs.turn_ids)
    episodes = return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
    rewards, sizes = turns.sums(inputs.token_rewards).double(), turns.sums(inputs.token_rewards.abs())
    by_turn = _compared_turns(rewards, sizes, turns.mask, turns.at_starts(inputs.turn_ids), inputs, params)
    mixed = (1 - params.outcome_weight) * by_turn + params.outcome_weight * _norm(episodes, params)[:, None]
    return _on_turns(mixed, turns, inputs)


def _onwards(rewards: Tensor, turns: TurnLayout, params: AdvantageParams) -> Tensor:
    """[B, K]: discounted return from each turn on, in float64."""
    exact = rewards.double()
    return discounted_returns(exact, turns.mask, torch.full_like(exact, params.gamma_turn))


def _compared_turns(
    values: Tensor, sizes: Tensor, compared: Tensor, keys: Tensor, inputs: AdvantageInputs, params: AdvantageParams
) -> Tensor:
    """norm of [B, K] values among the compared turns of a group that have the same key; 0 for other turns.

    `sizes` are sums of the absolute rewards, which bound the rounding error of the values.
    """
    groups = inputs.group_ids[:, None].expand_as(keys)[compared]
    rounding = rounding_error(sizes[compared], inputs.token_rewards.dtype)
    found = group_statistics(values[compared], pair_ids(groups, keys[compared]), rounding)
    return torch.zeros_like(values).masked_scatter(compared, _norm(found, params))


def _norm(found: GroupStatistics, params: AdvantageParams) -> Tensor:
    return found.standardised(params.epsilon) if params.by_std else found.centred


def _on_turns(per_turn: Tensor, turns: TurnLayout, inputs: AdvantageInputs) -> AdvantageResult:
    return AdvantageResult(advantages=turns.spread(per_turn.to(inputs.token_rewards.dtype)))


def reinforce(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Discounted return from each sampled token on, without a baseline (Williams 1992).

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
    (`Advantage.outcome_minus_kl`).
    """
    return AdvantageResult(advantages=whiten(reinforce(inputs, params).advantages, inputs.mask))


def remax(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Undiscounted return from each sampled token on, minus the greedy rollout's return (ReMax, Li et al. 2023).

    With the reward at the end, as in the paper, this is R minus the greedy R on all tokens.
    """
    if inputs.greedy_returns is None:
        raise ValueError("remax needs the return of each group's greedy episode as baseline.")
    returns = discounted_returns(inputs.token_rewards, inputs.mask, torch.ones_like(inputs.token_rewards))
    above = returns - inputs.greedy_returns[:, None].to(returns)
    return AdvantageResult(advantages=torch.where(inputs.mask, above, 0.0))


def arpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Raw return R on all tokens (first family of RAGEN: identity normalisation)."""
    return broadcast_to_tokens(return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids).values, inputs)


def brpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """(R - mean) / (std + epsilon) over the whole batch, each trajectory once (first family of RAGEN).

    Assumes similar tasks: all trajectories of an easy task look good beside those of a hard one.
    """
    batch = return_statistics(inputs.token_rewards, inputs.mask, torch.zeros_like(inputs.group_ids))
    return broadcast_to_tokens(batch.standardised(params.epsilon), inputs)


ADVANTAGE_TRAITS = ("along_tokens", "needs_critic", "needs_groups", "needs_states", "outcome_minus_kl", "needs_greedy")


def advantage(**traits: bool) -> Callable[[Function], Function]:
    """Declare what an advantage function of yours needs, such as `@tw.advantage(needs_critic=True)`.

    needs_critic: reads `values` and `bootstrap`, and returns `returns`. needs_groups: compares episodes of a group.
    needs_states: reads `state_ids`. needs_greedy: reads `greedy_returns`. along_tokens: runs along a trajectory's
    tokens and skips those excluded by algo.advantage_tokens. outcome_minus_kl: expects the whole reward at the last
    token.
    """
    return declare_traits(traits, ADVANTAGE_TRAITS, "advantage")


def _from_user_function(function: Callable[..., Any], **traits: Any) -> Advantage:
    def compute(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
        found = function(inputs, params)
        result = AdvantageResult(advantages=found) if isinstance(found, Tensor) else found
        if not isinstance(result, AdvantageResult):
            raise UserError(f"algo.advantage returned {type(found).__name__}: return a tensor or AdvantageResult")
        if result.advantages.shape != inputs.mask.shape:
            shapes = f"{list(result.advantages.shape)} instead of {list(inputs.mask.shape)}"
            raise UserError(f"algo.advantage returned the shape {shapes}: one advantage per token, as in inputs.mask")
        if traits.get("needs_critic") and result.returns is None:
            raise UserError("algo.advantage needs a critic but returns no AdvantageResult.returns to train it on")
        return replace(result, advantages=torch.where(inputs.mask, result.advantages, 0.0))

    return Advantage(compute=compute, **traits)


ADVANTAGES: Registry[Advantage] = Registry(
    "algo.advantage",
    _from_user_function,
    {
        # with a critic
        "gae": Advantage(compute=gae, along_tokens=True, needs_critic=True, reads=("gamma", "lam", "whiten")),
        "turn_gae": Advantage(
            compute=turn_gae,
            along_tokens=True,
            needs_critic=True,
            reads=("gamma_turn", "lam_turn", "whiten", "whiten_over"),
        ),
        "step_gae": Advantage(
            compute=step_gae,
            along_tokens=True,
            needs_critic=True,
            reads=("gamma_turn", "lam_turn", "whiten", "whiten_over"),
        ),
        "bi_level_gae": Advantage(
            compute=bi_level_gae,
            along_tokens=True,
            needs_critic=True,
            reads=("gamma", "lam", "gamma_turn", "lam_turn", "whiten"),
        ),
        # within a group
        "grpo": Advantage(compute=grpo, needs_groups=True, reads=("epsilon",)),
        "dr_grpo": Advantage(compute=dr_grpo, needs_groups=True),
        "rloo": Advantage(compute=rloo, needs_groups=True),
        "opo": Advantage(compute=opo, needs_groups=True),
        "gpg": Advantage(compute=gpg, needs_groups=True),
        "pass_at_k": Advantage(compute=pass_at_k, needs_groups=True, reads=("by_std", "epsilon")),
        "reinforce_pp_baseline": Advantage(compute=reinforce_pp_baseline, needs_groups=True),
        # within a group, turn by turn
        "gigpo": Advantage(
            compute=gigpo,
            needs_groups=True,
            needs_states=True,
            reads=("gamma_turn", "episode_weight", "step_weight", "by_std", "epsilon"),
        ),
        "turn_grpo": Advantage(compute=turn_grpo, needs_groups=True, reads=("outcome_weight", "by_std", "epsilon")),
        # neither
        "reinforce": Advantage(compute=reinforce, along_tokens=True, reads=("gamma", "gamma_turn")),
        "reinforce_pp": Advantage(
            compute=reinforce_pp, along_tokens=True, outcome_minus_kl=True, reads=("gamma", "gamma_turn")
        ),
        "remax": Advantage(compute=remax, along_tokens=True, needs_greedy=True),
        "arpo": Advantage(compute=arpo),
        "brpo": Advantage(compute=brpo, reads=("epsilon",)),
        # for stored trajectories
        "clone": Advantage(compute=clone, uses_rewards=False),
        "preference": Advantage(compute=preference, needs_groups=True, compares_pairs=True),
    },
)
