"""Advantages by comparing whole trajectories of a group: one number each, on all of its tokens.

A group of one teaches nothing and gets exactly 0; so does a group whose returns are all equal.
"""

import torch

from turnwise.algos.advantage_types import AdvantageInputs, AdvantageParams, AdvantageResult, on_all_tokens
from turnwise.algos.stats import GroupStatistics, group_statistics, over_group
from turnwise.algos.whitening import whiten


def grpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """(R - mean) / (std + epsilon) within the group (Shao et al. 2024)."""
    return on_all_tokens(_returns(inputs).standardised(params.epsilon), inputs)


def dr_grpo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - mean within the group: without the std, easy and hard tasks keep their weight (Liu et al. 2025)."""
    return on_all_tokens(_returns(inputs).centred, inputs)


def rloo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - mean of the *other* members = n / (n - 1) (R - mean), an unbiased baseline (Ahmadian et al. 2024)."""
    group = _returns(inputs)
    return on_all_tokens(group.centred * group.size / (group.size - 1).clamp(min=1), inputs)


def reinforce_pp_baseline(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - mean within the group, then whitened over all sampled tokens (REINFORCE++-baseline, Hu 2025).

    Tokens count, so long trajectories weigh more in the batch's mean. A group of one enters no statistic.
    """
    compared = inputs.mask & (_returns(inputs).size > 1)[:, None]
    return AdvantageResult(advantages=whiten(dr_grpo(inputs, params).advantages, compared))


def opo(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """R - sum(length R) / sum(length) within the group (OPO, Hao et al. 2025).

    The baseline of least variance, where a trajectory's squared gradient grows with the tokens that it sampled.
    """
    centred, lengths = _returns(inputs).centred, inputs.mask.sum(dim=1).double()
    group = inputs.group_ids.unique(return_inverse=True)[1]
    total = over_group(lengths, group, "sum").clamp(min=1)
    return on_all_tokens(centred - over_group(lengths * centred, group, "sum") / total, inputs)


def gpg(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """(B / non-zero) (R - mean) within the group, for the loss -A log pi (GPG, Chu et al. 2025).

    B counts the batch's trajectories and non-zero those that earned anything: a batch that earned little still takes
    a whole step.
    """
    group = _returns(inputs)
    trajectories, earned = inputs.mask.any(dim=1).sum().double(), (group.values != 0).sum().clamp(min=1)
    return on_all_tokens(group.centred * (trajectories / earned), inputs)


def pass_at_k(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """Only the group's best gets R_best - R_second, over the std (+ epsilon) if `by_std` (Tang et al. 2025).

    The gradient of the group's best reward, leave-one-out: it rewards trying differently. A tie gives 0.
    """
    group, numbers = _returns(inputs), inputs.group_ids.unique(return_inverse=True)[1]
    scores = torch.where(inputs.mask.any(dim=1), group.centred, -torch.inf)
    best = (scores == over_group(scores, numbers, "amax")) & (group.size > 1)
    second = over_group(torch.where(best, -torch.inf, scores), numbers, "amax")
    alone_on_top = best & (over_group(best.double(), numbers, "sum") == 1)
    gap = torch.where(alone_on_top, scores - second, 0.0)
    return on_all_tokens(gap / (group.std + params.epsilon) if params.by_std else gap, inputs)


def _returns(inputs: AdvantageInputs) -> GroupStatistics:
    return group_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids)
