"""Estimators of KL(pi | pi_ref) from one sampled token, x = log pi - log pi_ref (http://joschu.net/blog/kl-approx.html).

As a loss they are not alike: the gradient of k1 has expectation 0 (it belongs into the reward), that of k2 is the
gradient of the KL, that of k3 is close to it while the policies are.
"""

from collections.abc import Callable

from torch import Tensor

MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0
"""Beyond it k3 is flat: exp(-x) of a single token must not own the step."""

KlEstimator = Callable[[Tensor, Tensor], Tensor]


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
    x = (logprobs - ref_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return ((-x).exp() - 1 + x).clamp(-MAX_K3, MAX_K3)


KL_ESTIMATORS: dict[str, KlEstimator] = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute}
