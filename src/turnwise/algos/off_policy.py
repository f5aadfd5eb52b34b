"""Off-policy corrections, rejection and metrics, for tokens sampled by another policy than the old one.

rho = pi_old / mu, where mu is the sampler: another engine's rounding, or older weights. A correction weighs each
token's loss; the loss keeps its own ratio pi / pi_old, and weights carry no gradient. Rejection removes tokens, turns
or segments on which sampler and old policy disagree too much; it works with any correction. Removed tokens, also those
that `masked` drops, contribute nothing to the policy's loss, neither entropy nor KL. They stay in the aggregation's
denominator.

The tokens were drawn from mu, so k2 and k3 estimate KL(mu | pi_old); KL(pi_old | mu) would need samples of pi_old.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from turnwise.algos.kl import clamp_log_ratio
from turnwise.algos.loss_types import LossInputs, LossResult, RatioLevel, max_over, mean_over, sum_over, unit_ids
from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import LEARNER_LOGPROBS, Need
from turnwise.settings.section import NonNegative

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionResult:
    weights: Tensor  # [M] without gradient
    outside: Tensor  # [M] bool, where a bound took effect
    dropped: Tensor  # [M] bool, tokens that are not trained on at all, neither by the entropy nor by the KL term


class Correction(Choice):
    """A correction and its settings."""

    compares_learner: ClassVar[bool] = True
    """Uses the ratio of the learner's to the sampler's probability."""

    def needs(self) -> list[Need]:
        why = f"algo.correction {self.kind} uses the ratio of the learner's to the sampler's probability"
        return [Need(LEARNER_LOGPROBS, why)] if self.compares_learner else []

    @abstractmethod
    def compute(self, inputs: LossInputs) -> CorrectionResult: ...

    def scale(self, inputs: LossInputs, trained: Tensor) -> float:
        """Return the factor of the weights of an optimizer step, of which `inputs` are all tokens."""
        return 1.0

    @property
    def is_normalised(self) -> bool:
        return False


class NoCorrection(Correction, kind="none"):
    """Weight 1: treat the sampler as the old policy."""

    compares_learner: ClassVar[bool] = False

    def compute(self, inputs: LossInputs) -> CorrectionResult:
        return _inside(torch.ones_like(inputs.old_logprobs))


class WeightCorrection(Correction):
    """A correction by importance weights that may be normalised."""

    normalise: bool = False
    """Divide the weights by their mean over the optimizer step."""

    @property
    def is_normalised(self) -> bool:
        return self.normalise

    @property
    def unit(self) -> RatioLevel:
        """Unit of the weights."""
        return "token"

    def scale(self, inputs: LossInputs, trained: Tensor) -> float:
        """Return 1 / the mean weight of the step's trained tokens [M] bool with `normalise`, else 1.

        The corrected loss then keeps the scale of the uncorrected one (self-normalised importance sampling). A turn or
        segment counts once where it is the unit of the weights.
        """
        if not self.normalise or not trained.any():
            return 1.0
        weights = self.compute(inputs).weights.double()[trained]
        units = unit_ids(inputs.segment_ids, inputs.turn_ids, self.unit)[trained].unique(return_inverse=True)[1]
        share = 1 / sum_over(torch.ones_like(weights), units)
        return float(share.sum() / (weights * share).sum())


class Decoupled(WeightCorrection, kind="decoupled"):
    """rho = pi_prox / mu: the clip keeps the policy near a recent one, whatever the sampler (Hilton et al. 2022).

    `old_logprobs` are then those of the proximal policy, scored by the learner. Unbounded: `truncated` and `masked`
    are the same with bounds.
    """

    def compute(self, inputs: LossInputs) -> CorrectionResult:
        return _inside(_log_rho(inputs).exp())


Bounds = tuple[NonNegative, NonNegative]
CorrectionLevel = Literal["token", "turn", "sequence", "turn_mean", "sequence_mean"]


def check_bounds(bounds: Bounds, consequence: str) -> None:
    low, high = bounds
    if low > high:
        raise ValueError(f"bounds {low}, {high}: the lower bound is above the upper, so {consequence}. Swap them.")


class BoundedCorrection(Choice):
    """A correction with bounds of the ratio to the sampler."""

    level: CorrectionLevel = "token"
    """Unit whose ratio is bounded; "sequence" is a segment. _mean: geometric mean of its tokens, not their product."""
    bounds: Bounds = (0.0, 2.0)
    """Lowest and highest ratio."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_bounds(self.bounds, "no token would be trained")
        return self

    def unit_rho(self, inputs: LossInputs) -> Tensor:
        """Return rho of the unit of each token, [M]."""
        units = unit_ids(inputs.segment_ids, inputs.turn_ids, ratio_level(self.level))
        pooled = mean_over if self.level.endswith("_mean") else sum_over
        return clamp_log_ratio(pooled(inputs.old_logprobs - inputs.sampler_logprobs, units)).exp()


def ratio_level(level: CorrectionLevel) -> RatioLevel:
    """Return the unit of a level, however its ratio is pooled."""
    match level:
        case "turn_mean":
            return "turn"
        case "sequence_mean":
            return "sequence"
        case _:
            return level


class Truncated(BoundedCorrection, WeightCorrection, kind="truncated"):
    """clamp(rho, low, high), rho of a token, turn or segment: truncated importance sampling (Yao et al. 2025)."""

    @property
    def unit(self) -> RatioLevel:
        return ratio_level(self.level)

    def compute(self, inputs: LossInputs) -> CorrectionResult:
        rho = self.unit_rho(inputs)
        weights = rho.clamp(*self.bounds)
        return _bounded(weights, weights != rho)


class Masked(BoundedCorrection, Correction, kind="masked"):
    """rho where that of the token, turn or segment is in `bounds`, else dropped (IcePop, Ling team 2025).

    `decoupled` with algo.rejection drops by other statistics. Dropped tokens stay in the aggregation's denominator:
    fewer trained tokens mean a smaller step, not larger shares for the others.
    """

    def compute(self, inputs: LossInputs) -> CorrectionResult:
        rho, (low, high) = self.unit_rho(inputs), self.bounds
        outside = (rho < low) | (rho > high)
        weights = _log_rho(inputs).exp().masked_fill(outside, 0.0)
        return CorrectionResult(weights=weights, outside=outside, dropped=outside)


class TwoSided(Correction, kind="two_sided"):
    """0 where A > 0 and pi - mu > difference, or A < 0 and pi - mu < -difference; else 1.

    Bounds the probability instead of its ratio: rare tokens may grow by large factors, likely ones may not jump. A
    bound of the policy's step, like the clip of ppo: entropy and KL terms stay.
    """

    compares_learner: ClassVar[bool] = False
    difference: ClassVar[float] = 0.2
    """Largest change of a token's probability from the sampler's before the token is dropped."""

    def compute(self, inputs: LossInputs) -> CorrectionResult:
        moved = inputs.policy_logprobs.detach().exp() - inputs.sampler_logprobs.exp()
        too_high = (inputs.advantages > 0) & (moved > self.difference)
        too_low = (inputs.advantages < 0) & (moved < -self.difference)
        outside = too_high | too_low
        return _bounded(torch.ones_like(moved).masked_fill(outside, 0.0), outside)


CORRECTIONS: dict[str, type[Correction]] = choices(NoCorrection, Decoupled, Truncated, Masked, TwoSided)


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


POOLS = {"sum": sum_over, "mean": mean_over, "max": max_over}


class Rejection(Choice):
    """Rejection of tokens, turns or segments on which the old policy and the sampler disagree."""

    @abstractmethod
    def rejected(self, inputs: LossInputs) -> Tensor:
        """Mark the tokens that are not trained on. [M] bool"""


class NoRejection(Rejection, kind="none"):
    """Reject nothing."""

    def rejected(self, inputs: LossInputs) -> Tensor:
        return torch.zeros_like(inputs.turn_ids, dtype=torch.bool)


class RatioRejection(Rejection):
    """Rejection by the ratio of the learner's to the sampler's probability."""

    def needs(self) -> list[Need]:
        why = f"algo.rejection {self.kind} uses the ratio of the learner's to the sampler's probability"
        return [Need(LEARNER_LOGPROBS, why)]


class Veto(RatioRejection, kind="veto"):
    """Reject a segment in which any token's rho is below 1e-4."""

    lowest: ClassVar[float] = 1e-4

    def rejected(self, inputs: LossInputs) -> Tensor:
        log_rho = _log_rho(inputs)
        segments = unit_ids(inputs.segment_ids, inputs.turn_ids, "sequence")
        return max_over((log_rho.exp() < self.lowest).to(log_rho.dtype), segments) > 0


class RejectTokens(RatioRejection, kind="token"):
    """Reject tokens whose statistic is outside `bounds`."""

    statistic: Literal["ratio", "k2", "k3"] = "ratio"
    """Statistic that the bounds apply to: rho, k2 = log(rho)^2 / 2 or k3 = rho - 1 - log rho."""
    bounds: Bounds = (0.0, 2.0)
    """Lowest and highest statistic that is trained."""

    level: ClassVar[RatioLevel] = "token"

    @model_validator(mode="after")
    def _check(self) -> RejectTokens:
        check_bounds(self.bounds, "everything would be rejected")
        return self

    def rejected(self, inputs: LossInputs) -> Tensor:
        statistic = self._pooled(_log_rho(inputs), unit_ids(inputs.segment_ids, inputs.turn_ids, self.level))
        low, high = self.bounds
        return (statistic < low) | (statistic > high)

    def _pooled(self, log_rho: Tensor, units: Tensor) -> Tensor:
        return self._statistic(log_rho, units, "mean")

    def _statistic(self, log_rho: Tensor, units: Tensor, pool: str) -> Tensor:
        """Pool log-ratios or estimates over units: the sum of log-ratios gives the exact ratio."""
        if self.statistic == "ratio":
            return clamp_log_ratio(POOLS[pool](log_rho, units)).exp()
        estimates = {"k2": 0.5 * log_rho.square(), "k3": log_rho.exp() - 1 - log_rho}  # no upper bound as in a loss
        return POOLS[pool](estimates[self.statistic], units)


class RejectTurns(RejectTokens, kind="turn"):
    """Reject turns whose statistic is outside `bounds`."""

    pool: Literal["sum", "mean", "max"] = "mean"
    """Statistic of a turn or segment from those of its tokens. Log-ratios are pooled: sum gives the exact ratio."""

    level: ClassVar[RatioLevel] = "turn"

    @model_validator(mode="after")
    def _check_pool(self) -> RejectTurns:
        if self.pool == "max" and self.statistic == "ratio":
            raise ValueError(
                "pool max does not see ratios below 1. Choose statistic k2 or k3, which grow in both directions."
            )
        return self

    def _pooled(self, log_rho: Tensor, units: Tensor) -> Tensor:
        return self._statistic(log_rho, units, self.pool)


class RejectSegments(RejectTurns, kind="sequence"):
    """Reject segments whose statistic is outside `bounds`."""

    level: ClassVar[RatioLevel] = "sequence"


REJECTIONS: dict[str, type[Rejection]] = choices(NoRejection, Veto, RejectTokens, RejectTurns, RejectSegments)


def apply_rejection(result: LossResult, rejected: Tensor) -> LossResult:
    """Remove rejected tokens from the loss, so that they get no gradient, and add their share to the metrics."""
    metrics = result.metrics | {"rejected": rejected.to(result.token_loss.dtype)}
    return LossResult(token_loss=result.token_loss.masked_fill(rejected, 0.0), metrics=metrics)


OFF_POLICY_METRICS = (
    "offpolicy_kl_k1",
    "offpolicy_kl_k3",
    "offpolicy_ppl",
    "offpolicy_ppl_sampler",
    "offpolicy_ppl_ratio",
    "offpolicy_chi2_token",
    "offpolicy_chi2_sequence",
)


def compute_off_policy_metrics(
    policy_logprobs: Tensor, sampler_logprobs: Tensor, segments: Tensor, count: int
) -> Tensor:
    """Return the metrics in the order of OFF_POLICY_METRICS, from one entry [M] per sampled token.

    `segments` [M] are segment indices below `count`. With d = log pi - log mu:

    kl_k1, kl_k3     mean of -d, and of exp(d) - 1 - d: estimates of KL(mu | pi)
    ppl, ppl_sampler mean over segments of exp(-mean log-probability) of pi, and of mu
    ppl_ratio        mean over segments of pi's perplexity over mu's
    chi2             mean of rho^2 minus 1, rho = exp(d) of a token or exp(sum of d) of a segment: an unbiased
                     estimate of chi^2(pi | mu), which may be negative in a small batch

    Log-ratios are bounded, so that all metrics are finite. Segments without tokens do not count.
    """
    policy, sampler = policy_logprobs.double(), sampler_logprobs.double()
    d = clamp_log_ratio(policy - sampler)
    empty = d.new_zeros(count)
    lengths = empty.index_add(0, segments, torch.ones_like(d))
    sampled = lengths > 0
    log_ppl, log_ppl_sampler = (
        -empty.index_add(0, segments, logprobs)[sampled] / lengths[sampled] for logprobs in (policy, sampler)
    )
    rho_segment = clamp_log_ratio(empty.index_add(0, segments, d)[sampled]).exp()
    return torch.stack(
        [
            -d.mean(),
            (d.exp() - 1 - d).mean(),
            clamp_log_ratio(log_ppl).exp().mean(),
            clamp_log_ratio(log_ppl_sampler).exp().mean(),
            clamp_log_ratio(log_ppl - log_ppl_sampler).exp().mean(),
            d.exp().square().mean() - 1,
            rho_segment.square().mean() - 1,
        ]
    )
