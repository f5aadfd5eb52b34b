"""Log-ratios of two policies, estimators of KL(pi | pi_ref), and the adaptive KL coefficient.

The estimators take one sampled token, x = log pi - log pi_ref (http://joschu.net/blog/kl-approx.html). As losses they
differ: the gradient of k1 has expectation 0 (use it in the reward), that of k2 is the gradient of the KL, and that of
k3 is close to it while the policies are close.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch

MAX_LOG_RATIO = 20.0
"""Bound of log-ratios: larger ones carry no learning signal and soon overflow."""


MAX_K3 = 10.0
"""Upper bound of k3, so that exp(-x) of a single token cannot dominate the step."""


KlEstimator = Callable[["Tensor", "Tensor"], "Tensor"]


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def k1(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """x: unbiased, high variance, may be negative."""
    return policy_logprobs - ref_logprobs


def absolute(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """|x|: a distance, not an estimate of the KL."""
    return (policy_logprobs - ref_logprobs).abs()


def k2(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """x^2 / 2: biased, low variance."""
    return 0.5 * (policy_logprobs - ref_logprobs).square()


def k3(policy_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(-x) - 1 + x: unbiased, low variance, never negative."""
    x = clamp_log_ratio(policy_logprobs - ref_logprobs)
    return ((-x).exp() - 1 + x).clamp(-MAX_K3, MAX_K3)


KL_ESTIMATORS: dict[str, KlEstimator] = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute}


def subtract_kl(token_rewards: Tensor, kl: Tensor, mask: Tensor, coef: float) -> Tensor:
    """r_t - coef kl_t at every sampled token of [B, T], 0 elsewhere: the KL as part of the reward.

    The KL is estimated with k1 between the old policy and the reference.
    """
    return torch.where(mask, token_rewards - coef * kl, 0.0)


MAX_KL_ERROR = 0.2
"""Bound of the relative KL error in one update of the coefficient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCoefficient:
    """Adaptive KL coefficient (Ziegler et al. 2019). Its only state is `value`."""

    value: float
    target: float | None = None
    """Target KL per token; None keeps the coefficient fixed."""
    horizon: float = 10000.0
    """Number of trajectories in which the coefficient may change by a factor of about 1.2."""

    def update(self, kl: float, trajectories: int) -> KlCoefficient:
        """value *= 1 + clip(KL / target - 1, +-0.2) n / horizon, after a step over n trajectories."""
        if self.target is None:
            return self
        error = min(max(kl / self.target - 1, -MAX_KL_ERROR), MAX_KL_ERROR)
        return replace(self, value=self.value * (1 + error * trajectories / self.horizon))
