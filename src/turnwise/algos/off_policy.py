"""Off-policy corrections, rejection and metrics, for tokens sampled by another policy than the old one.

rho = pi_old / mu, where mu is the sampler: another engine's rounding, or older weights. A correction weighs each
token's loss; the loss keeps its own ratio pi / pi_old, and weights carry no gradient. Rejection removes tokens, turns
or sequences on which sampler and old policy disagree too much; it works with any correction. Removed tokens, also those
that `masked` drops, contribute nothing to the policy's loss, neither entropy nor KL. They stay in the aggregation's
denominator.

The tokens were drawn from mu, so k2 and k3 estimate KL(mu | pi_old); KL(pi_old | mu) would need samples of pi_old.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.kl import clamp_log_ratio, k2, k3
from turnwise.algos.loss_types import LossInputs, LossResult, max_over, mean_over, sum_over, unit_ids
from turnwise.core.algorithm import CorrectionParams, RejectionParams


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionResult:
    weights: Tensor  # [M] without gradient
    outside: Tensor  # [M] bool, where a bound took effect
    dropped: Tensor  # [M] bool, tokens that are not trained on at all, neither by the entropy nor by the KL term


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    compute: Callable[[LossInputs, CorrectionParams], CorrectionResult]
    reads: tuple[str, ...] = ()
    """Fields of CorrectionParams that change the result."""


def none(inputs: LossInputs, params: CorrectionParams) -> CorrectionResult:
    """Weight 1: treat the sampler as the old policy."""
    return _inside(torch.ones_like(inputs.old_logprobs))


def decoupled(inputs: LossInputs, params: CorrectionParams) -> CorrectionResult:
    """rho = pi_prox / mu: the clip keeps the policy near a recent one, whatever the sampler (Hilton et al. 2022).

    `old_logprobs` are then those of the proximal policy, scored by the learner. Unbounded: `truncated` and `masked`
    are the same with bounds.
    """
    return _inside(_log_rho(inputs).exp())


def truncated(inputs: LossInputs, params: CorrectionParams) -> CorrectionResult:
    """clamp(rho, low, high), rho of a token, turn or sequence: truncated importance sampling (Yao et al. 2025)."""
    rho = _unit_rho(inputs, params)
    weights = rho.clamp(params.correction_low, params.correction_high)
    return _bounded(weights, weights != rho)


def masked(inputs: LossInputs, params: CorrectionParams) -> CorrectionResult:
    """rho where the statistic is in [low, high], else dropped (IcePop, Ling team 2025; at sequences: Liu et al. 2025).

    Dropped tokens stay in the aggregation's denominator: fewer trained tokens mean a smaller step, not larger shares
    for the others.
    """
    statistic = _statistic(inputs, params)
    outside = (statistic < params.correction_low) | (statistic > params.correction_high)
    rho = _log_rho(inputs).exp() if params.correction_token_weights else _unit_rho(inputs, params)
    return CorrectionResult(weights=rho.masked_fill(outside, 0.0), outside=outside, dropped=outside)


def two_sided(inputs: LossInputs, params: CorrectionParams) -> CorrectionResult:
    """0 where A > 0 and pi - mu > difference, or A < 0 and pi - mu < -difference; else 1.

    Bounds the probability instead of its ratio: rare tokens may grow by large factors, likely ones may not jump. A
    bound of the policy's step, like the clip of ppo: entropy and KL terms stay.
    """
    moved = inputs.logprobs.detach().exp() - inputs.sampler_logprobs.exp()
    too_high = (inputs.advantages > 0) & (moved > params.correction_difference)
    too_low = (inputs.advantages < 0) & (moved < -params.correction_difference)
    outside = too_high | too_low
    return _bounded(torch.ones_like(moved).masked_fill(outside, 0.0), outside)


def compute_correction_scale(
    correction: Correction, inputs: LossInputs, params: CorrectionParams, trained: Tensor
) -> float:
    """Return 1 / the mean weight of an optimiser step's trained tokens [M] bool with `normalise`, else 1.

    The corrected loss then keeps the scale of the uncorrected one (self-normalised importance sampling). A turn or
    sequence counts once where it is the unit of the weights. `inputs` are all tokens of the step.
    """
    if not params.correction_normalise or "correction_normalise" not in correction.reads or not trained.any():
        return 1.0
    weights = correction.compute(inputs, params).weights.double()[trained]
    level = params.correction_level if "correction_level" in correction.reads else "token"
    units = unit_ids(inputs.segment_ids, inputs.turn_ids, level)[trained].unique(return_inverse=True)[1]
    share = 1 / sum_over(torch.ones_like(weights), units)
    return float(share.sum() / (weights * share).sum())


def apply_correction(result: LossResult, correction: CorrectionResult, scale: float = 1.0) -> LossResult:
    """Weigh the token losses; add the weights and the share outside the bounds to the metrics."""
    weights = correction.weights * scale
    extra = {"correction_weight": weights, "correction_outside": correction.outside.to(weights.dtype)}
    return LossResult(token_loss=result.token_loss * weights, metrics=result.metrics | extra)


def _inside(weights: Tensor) -> CorrectionResult:
    return _bounded(weights, torch.zeros_like(weights, dtype=torch.bool))


def _bounded(weights: Tensor, outside: Tensor) -> CorrectionResult:
    return CorrectionResult(weights=weights, outside=outside, dropped=torch.zeros_like(outside))


def _log_rho(inputs: LossInputs) -> Tensor:
    return clamp_log_ratio(inputs.old_logprobs - inputs.sampler_logprobs)


def _unit_rho(inputs: LossInputs, params: CorrectionParams) -> Tensor:
    units = unit_ids(inputs.segment_ids, inputs.turn_ids, params.correction_level)
    pool = sum_over if params.correction_pool == "product" else mean_over
    return clamp_log_ratio(pool(inputs.old_logprobs - inputs.sampler_logprobs, units)).exp()


def _statistic(inputs: LossInputs, params: CorrectionParams) -> Tensor:
    if params.correction_statistic == "ratio":
        return _unit_rho(inputs, params)
    estimator = {"k2": k2, "k3": k3}[params.correction_statistic]
    units = unit_ids(inputs.segment_ids, inputs.turn_ids, params.correction_level)
    # The tokens are samples of mu, so KL(mu | pi_old) is what they can estimate: k3 = rho - 1 - log rho.
    return mean_over(estimator(inputs.sampler_logprobs, inputs.old_logprobs), units)


CORRECTIONS: dict[str, Correction] = {
    "none": Correction(compute=none),
    "decoupled": Correction(compute=decoupled, reads=("correction_normalise",)),
    "truncated": Correction(
        compute=truncated,
        reads=("correction_level", "correction_low", "correction_high", "correction_pool", "correction_normalise"),
    ),
    "masked": Correction(
        compute=masked,
        reads=(
            "correction_level",
            "correction_low",
            "correction_high",
            "correction_pool",
            "correction_statistic",
            "correction_token_weights",
        ),
    ),
    "two_sided": Correction(compute=two_sided, reads=("correction_difference",)),
}


POOLS = {"sum": sum_over, "mean": mean_over, "max": max_over}


def find_rejected(inputs: LossInputs, params: RejectionParams) -> Tensor:
    """Mark tokens rejected by their unit's statistic or by a veto in their sequence. [M] bool"""
    log_rho = clamp_log_ratio(inputs.old_logprobs - inputs.sampler_logprobs)
    sequences = unit_ids(inputs.segment_ids, inputs.turn_ids, "sequence")
    rejected = max_over((log_rho.exp() < params.reject_veto).to(log_rho.dtype), sequences) > 0
    if params.reject == "none":
        return rejected
    statistic = _pool_statistic(log_rho, inputs, params)
    return rejected | (statistic < params.reject_low) | (statistic > params.reject_high)


def apply_rejection(result: LossResult, rejected: Tensor) -> LossResult:
    """Remove rejected tokens from the loss, so that they get no gradient, and add their share to the metrics."""
    metrics = result.metrics | {"rejected": rejected.to(result.token_loss.dtype)}
    return LossResult(token_loss=result.token_loss.masked_fill(rejected, 0.0), metrics=metrics)


def _pool_statistic(log_rho: Tensor, inputs: LossInputs, params: RejectionParams) -> Tensor:
    assert params.reject != "none"
    units = unit_ids(inputs.segment_ids, inputs.turn_ids, params.reject)
    pool = POOLS[params.reject_pool]
    if params.reject_statistic == "ratio":
        return clamp_log_ratio(pool(log_rho, units)).exp()
    estimates = {"k2": 0.5 * log_rho.square(), "k3": log_rho.exp() - 1 - log_rho}  # no upper bound, unlike in a loss
    return pool(estimates[params.reject_statistic], units)


OFF_POLICY_METRICS = (
    "offpolicy_kl_k1",
    "offpolicy_kl_k3",
    "offpolicy_ppl",
    "offpolicy_ppl_sampler",
    "offpolicy_ppl_ratio",
    "offpolicy_chi2_token",
    "offpolicy_chi2_sequence",
)


def compute_off_policy_metrics(logprobs: Tensor, sampler_logprobs: Tensor, sequences: Tensor, count: int) -> Tensor:
    """Return the metrics in the order of OFF_POLICY_METRICS, from one entry [M] per sampled token.

    `sequences` [M] are sequence indices below `count`. With d = log pi - log mu:

    kl_k1, kl_k3     mean of -d, and of exp(d) - 1 - d: estimates of KL(mu | pi)
    ppl, ppl_sampler mean over sequences of exp(-mean log-probability) of pi, and of mu
    ppl_ratio        mean over sequences of pi's perplexity over mu's
    chi2             mean of rho^2 minus 1, rho = exp(d) of a token or exp(sum of d) of a sequence: an unbiased
                     estimate of chi^2(pi | mu), which may be negative in a small batch

    Log-ratios are bounded, so that all metrics are finite. Sequences without tokens do not count.
    """
    policy, sampler = logprobs.double(), sampler_logprobs.double()
    d = clamp_log_ratio(policy - sampler)
    empty = d.new_zeros(count)
    lengths = empty.index_add(0, sequences, torch.ones_like(d))
    sampled = lengths > 0
    log_ppl, log_ppl_sampler = (
        -empty.index_add(0, sequences, each)[sampled] / lengths[sampled] for each in (policy, sampler)
    )
    rho_sequence = clamp_log_ratio(empty.index_add(0, sequences, d)[sampled]).exp()
    return torch.stack(
        [
            -d.mean(),
            (d.exp() - 1 - d).mean(),
            clamp_log_ratio(log_ppl).exp().mean(),
            clamp_log_ratio(log_ppl_sampler).exp().mean(),
            clamp_log_ratio(log_ppl - log_ppl_sampler).exp().mean(),
            d.exp().square().mean() - 1,
            rho_sequence.square().mean() - 1,
        ]
    )
