"""Policy losses: one number a sampled token. The caller multiplies by the aggregation's weights and sums."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp of more than this is no ratio that anything can be learnt from, and soon infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The M sampled tokens of a packed micro-batch."""

    logprobs: Tensor  # [M] of the policy that learns: the only one with a gradient
    old_logprobs: Tensor  # [M] what the ratio divides by
    advantages: Tensor  # [M]

    def __post_init__(self) -> None:
        if not self.logprobs.shape == self.old_logprobs.shape == self.advantages.shape:
            raise ValueError("logprobs, old_logprobs and advantages must be of one shape")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParams:
    clip_low: float
    clip_high: float
    dual_clip: float | None
    """Bounds the loss of a negative advantage at this many times it; None: no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    token_loss: Tensor  # [M]
    metrics: dict[str, Tensor]
    """[M] each and without gradient; the caller averages them over all tokens of the optimiser step."""


Loss = Callable[[LossInputs, LossParams], LossResult]


def ppo(inputs: LossInputs, params: LossParams) -> LossResult:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = pi / pi_old (Schulman et al. 2017).

    Dual clip (Ye et al. 2020): where A < 0 the loss is at most -c A. A ratio far above 1 on a bad token would
    otherwise give a loss without bound, since the clip binds only on the other side.
    """
    log_ratio = (inputs.logprobs - inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = -inputs.advantages * ratio
    clipped = -inputs.advantages * ratio.clamp(1 - params.clip_low, 1 + params.clip_high)
    token_loss = torch.maximum(plain, clipped)
    bounded = torch.zeros_like(token_loss, dtype=torch.bool)
    if params.dual_clip is not None:
        bound = -inputs.advantages * params.dual_clip
        bounded = (inputs.advantages < 0) & (token_loss > bound)
        token_loss = torch.where(bounded, bound, token_loss)
    metrics = {
        "clip_fraction": (clipped > plain).to(ratio.dtype),
        "clip_fraction_low": bounded.to(ratio.dtype),
        "ratio": ratio.detach(),
        "approx_kl": -log_ratio.detach(),
    }
    return LossResult(token_loss=token_loss, metrics=metrics)


LOSSES: dict[str, Loss] = {"ppo": ppo}
