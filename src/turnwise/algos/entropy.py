"""Log-probabilities of sampled tokens, entropies of their distributions, and the adaptive entropy coefficient."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def logprobs_and_entropy(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of targets [M] and the entropies [M], at temperature, from logits [M, V].

    Computed in at least float32: bfloat16 would round a log-probability of 5 to steps of 0.03. The [M, V] matrix is by
    far the largest of a training step, so the backward pass is written by hand: it keeps one matrix, with at most two
    beside the logits, where autograd keeps three.
    """
    logprobs, entropy = _LogprobsAndEntropy.apply(logits, targets, temperatures)
    return logprobs, entropy


class _LogprobsAndEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        temperatures = temperatures.to(torch.promote_types(logits.dtype, torch.float32))[:, None]
        scaled = logits / temperatures
        scaled -= scaled.amax(dim=-1, keepdim=True)
        weights = scaled.exp()
        total = weights.sum(dim=-1)
        log_total = total.log()
        entropy = log_total - weights.mul_(scaled).sum(dim=-1) / total
        all_logprobs = scaled.sub_(log_total[:, None])
        ctx.save_for_backward(all_logprobs, targets, temperatures, entropy)
        ctx.logits_dtype = logits.dtype
        return all_logprobs.gather(1, targets[:, None]).squeeze(1), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprobs_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor, None, None]:
        """d log p_y / d z_j = [j = y] - p_j and d H / d z_j = -p_j (log p_j + H)."""
        all_logprobs, targets, temperatures, entropy = ctx.saved_tensors
        grad = all_logprobs + entropy[:, None]
        grad.mul_(entropy_grad[:, None]).add_(logprobs_grad[:, None]).mul_(all_logprobs.exp()).neg_()
        grad.scatter_add_(1, targets[:, None], logprobs_grad[:, None])
        return grad.div_(temperatures).to(ctx.logits_dtype), None, None


ENTROPY_RATE = 0.1
"""Largest change of the logarithm of the coefficient in one step."""
MAX_ENTROPY_COEF = 0.1
"""Bound of the coefficient of tokens: a policy that is already deterministic would drive it up without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyCoefficient:
    """Adaptive coefficient of an entropy bonus, as SAC's temperature (Haarnoja et al. 2018). Its state is `value`."""

    value: float
    least: float
    """Value that it falls back to while the entropy is at least the target."""
    target: float | None = None
    """Target entropy; None keeps the coefficient constant."""
    most: float = MAX_ENTROPY_COEF
    """Largest value, unless `least` is larger."""

    def update(self, entropy: float) -> "EntropyCoefficient":
        """value *= exp(0.1 clip(1 - entropy / target, +-1)), from `least` to `most`, after a step with this entropy."""
        if self.target is None:
            return self
        error = min(max(1 - entropy / self.target, -1.0), 1.0)
        value = self.value * math.exp(ENTROPY_RATE * error)
        return replace(self, value=min(max(value, self.least), max(self.most, self.least)))
