"""Rejection: tokens, turns or sequences that the sampler and the old policy disagree on too much are not trained.

rho = pi_old / mu, with mu the sampler. The tokens were drawn from mu, so k2 and k3 of them estimate KL(mu | pi_old).
Rejection leaves the weights of the others as they are, and its tokens stay in the aggregation's denominator: it goes
with every correction, or with none.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from turnwise.algos.losses import LossInputs, LossResult
from turnwise.algos.ratios import Level, bounded, max_over, mean_over, sum_over, unit_ids

POOLS = {"sum": sum_over, "mean": mean_over, "max": max_over}


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionParams:
    level: Level | Literal["none"] = "none"
    """Unit that is rejected whole: a token, a turn or a sequence, which here is the segment."""
    statistic: Literal["ratio", "k2", "k3"] = "ratio"
    """Statistic that the bounds apply to: rho, k2 = log(rho)^2 / 2 or k3 = rho - 1 - log rho."""
    pool: Literal["sum", "mean", "max"] = "mean"
    """How the tokens of a turn or sequence make one statistic. Of rho the logarithm is pooled: the sum gives the ratio
    of the whole, the mean its geometric mean."""
    low: float = 0.0
    high: float = 2.0
    """Statistics outside [low, high] are rejected."""
    veto: float = 0.0
    """Reject a sequence in which any token's rho is below this: one token that the old policy would never have drawn
    makes the rest of its sequence unlikely too. 0: never."""

    @property
    def active(self) -> bool:
        return self.level != "none" or self.veto > 0


def find_rejected(inputs: LossInputs, params: RejectionParams) -> Tensor:
    """Return where a token is rejected, by its statistic or by a veto in its sequence. [M] bool"""
    log_rho = bounded(inputs.old_logprobs - inputs.sampler_logprobs)
    sequences = unit_ids(inputs.segment_ids, inputs.turn_ids, "sequence")
    rejected = max_over((log_rho.exp() < params.veto).to(log_rho.dtype), sequences) > 0
    if params.level == "none":
        return rejected
    statistic = _pool_statistic(log_rho, inputs, params)
    return rejected | (statistic < params.low) | (statistic > params.high)


def reject(result: LossResult, rejected: Tensor) -> LossResult:
    """Remove rejected tokens from the loss, exactly: they get no gradient. Their share is a metric."""
    metrics = result.metrics | {"rejected": rejected.to(result.token_loss.dtype)}
    return LossResult(token_loss=result.token_loss.masked_fill(rejected, 0.0), metrics=metrics)


def _pool_statistic(log_rho: Tensor, inputs: LossInputs, params: RejectionParams) -> Tensor:
    assert params.level != "none"
    units = unit_ids(inputs.segment_ids, inputs.turn_ids, params.level)
    pool = POOLS[params.pool]
    if params.statistic == "ratio":
        return bounded(pool(log_rho, units)).exp()
    estimates = {"k2": 0.5 * log_rho.square(), "k3": log_rho.exp() - 1 - log_rho}  # no upper bound, unlike in a loss
    return pool(estimates[params.statistic], units)
