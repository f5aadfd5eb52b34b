"""Estimators of KL(pi | pi_ref) from one sampled token, x = log pi - log pi_ref (http://joschu.net/blog/kl-approx.html).

As a loss they are not alike: the gradient of k1 has expectation 0 (it belongs into the reward), that of k2 is the
gradient of the KL, that of k3 is close to it while the policies are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp of more than this is no ratio that anything can be learnt from, and soon infinite."""


MAX_K3 = 10.0
"""Beyond it k3 is flat: exp(-x) of a single token must not own the step."""


KlEstimator = Callable[[Tensor, Tensor], Tensor]


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """x: unbiased, of high variance, may be negative."""
    return logprobs - ref_logprobs


def absolute(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """|x|: a distance, no estimate of the KL."""
    return (logprobs - ref_logprobs).abs()


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """x^2 / 2: of low variance, biased."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(-x) - 1 + x: unbiased, of low variance, never negative."""
    x = clamp_log_ratio(logprobs - ref_logprobs)
    return ((-x).exp() - 1 + x).clamp(-MAX_K3, MAX_K3)


KL_ESTIMATORS: dict[str, KlEstimator] = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute}


def subtract_kl(token_rewards: Tensor, kl: Tensor, mask: Tensor, coef: float) -> Tensor:
    """r_t - coef kl_t at every sampled token of [B, T], 0 elsewhere: the KL as part of what is optimised.

    Estimated with k1 between the old policy and the reference, it enters returns and advantages like any reward.
    """
    return torch.where(mask, token_rewards - coef * kl, 0.0)


MAX_KL_ERROR = 0.2
"""One update sees the KL at most this far, relatively, from its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCoefficient:
    """The weight of the KL, moved towards a KL that is wanted (Ziegler et al. 2019). Its whole state is `value`."""

    value: float
    target: float | None = None
    """The KL a token that is wanted; None: the weight stays as it is."""
    horizon: float = 10000.0
    """In how many trajectories the weight may change by a factor of about 1.2."""

    def update(self, kl: float, trajectories: int) -> "KlCoefficient":
        """value *= 1 + clip(KL / target - 1, +-0.2) n / horizon, after a step over n trajectories."""
        if self.target is None:
            return self
        error = min(max(kl / self.target - 1, -MAX_KL_ERROR), MAX_KL_ERROR)
        return replace(self, value=self.value * (1 + error * trajectories / self.horizon))
