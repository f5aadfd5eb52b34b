"""Advantages and losses for stored trajectories: imitation, advantage-weighted regression, preferences.

Off-policy GRPO needs nothing here: it is `grpo` and `ppo` with a correction of `off_policy.py` from the stored
log-probabilities.
"""

import torch
from torch import Tensor

from turnwise.algos.advantage_types import AdvantageInputs, AdvantageResult, broadcast_to_tokens
from turnwise.algos.loss_types import LossInputs, LossResult, PairInputs, loss_metrics, sum_over
from turnwise.algos.stats import reduce_by_group, return_statistics
from turnwise.core.algorithm import AdvantageParams, LossParams

MAX_FACTOR = 1 - 1e-6
"""Bound of dpo's factors in the metric of its loss, which stays finite."""


def clone(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """1 on every sampled token: with the loss `reinforce`, the log-likelihood of the data (behaviour cloning).

    Filtered behaviour cloning is the same on the episodes that `data.keep` and `data.min_reward` leave.
    """
    return broadcast_to_tokens(torch.ones(len(inputs.mask)), inputs)


def preference(inputs: AdvantageInputs, params: AdvantageParams) -> AdvantageResult:
    """1 for the best member of a group, -1 for the worst, 0 for the others and where all are equal: a pair for `dpo`.

    Of members with equal returns the first counts. Stored data comes as groups of two with different returns.
    """
    centred = return_statistics(inputs.token_rewards, inputs.mask, inputs.group_ids).centred  # 0 where all are equal
    groups = inputs.group_ids.unique(return_inverse=True)[1]
    best, worst = (_first_with_extreme(centred, groups, reduction) for reduction in ("amax", "amin"))
    marks = best.double() - worst.double()
    return broadcast_to_tokens(torch.where(centred.isnan(), centred, marks), inputs)


def _first_with_extreme(values: Tensor, groups: Tensor, reduction: str) -> Tensor:
    """Mark the first member of each group that has its largest or smallest value. [B] bool"""
    rows = torch.arange(len(values))
    candidates = values == reduce_by_group(values, groups, reduction)
    return rows == reduce_by_group(torch.where(candidates, rows, len(rows)), groups, "amin")


def awr(inputs: LossInputs, params: LossParams) -> LossResult:
    """-min(exp(A / beta), max_weight) log pi (advantage-weighted regression, Peng et al. 2019, algorithm 1).

    A weighted likelihood: nothing is pushed down, so the policy stays near the actions of the data. AWAC (Nair et al.
    2020) has the same actor, with A = Q - V of a critic that learns by bootstrapping.
    """
    weights = (inputs.advantages / params.awr_beta).exp().clamp(max=params.awr_max_weight)
    metrics = loss_metrics(inputs, awr_weight=weights, awr_clipped=weights == params.awr_max_weight)
    return LossResult(token_loss=-weights * inputs.logprobs, metrics=metrics)


def dpo_factors(inputs: PairInputs, params: LossParams) -> Tensor:
    """sigmoid(-beta (x_w - x_l)) of each token's pair, x = sum over the trajectory's tokens of log pi - log pi_ref. [M]

    How wrong the policy's implicit reward still is about the pair (Rafailov et al. 2023, equation 7). The sums run over
    whole trajectories, all segments and sampled tokens alone, as in Rafailov et al. 2024 for multi-turn dialogue.
    """
    pairs = inputs.group_ids.unique(return_inverse=True)[1]
    difference = (inputs.logprobs - inputs.ref_logprobs).double()
    margins = sum_over(inputs.advantages.double() * difference, pairs)
    return (-params.dpo_beta * margins).sigmoid().to(inputs.logprobs.dtype)


def dpo(inputs: LossInputs, params: LossParams) -> LossResult:
    """Direct preference optimisation: -log sigmoid(beta (x_w - x_l)), mean over pairs (Rafailov et al. 2023).

    Its gradient is -beta factor (grad x_w - grad x_l), so a token has the loss -beta factor A log pi, A = 1 in the
    preferred trajectory and -1 in the other: a pair may be split over micro-batches. Times 2, because the aggregation
    seq-mean-token-sum divides by the number of trajectories, and a pair has two.
    """
    if inputs.factors is None:
        raise ValueError("This loss needs LossInputs.factors, from Loss.weigh over the whole optimizer step.")
    token_loss = -2 * params.dpo_beta * inputs.factors * inputs.advantages * inputs.logprobs
    metrics = loss_metrics(
        inputs, dpo_loss=-torch.log1p(-inputs.factors.clamp(max=MAX_FACTOR)), dpo_accuracy=inputs.factors < 0.5
    )
    return LossResult(token_loss=token_loss, metrics=metrics)
