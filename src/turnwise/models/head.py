"""A model's output layer apart from its trunk: logits in float32, and log-probabilities without all logits at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.varlen import VarlenPlan

MAX_CHUNK_LOGITS, MIN_ROWS = 1 << 28, 64
"""Logits that live at once, at most (a gibibyte of them), but those of so many rows at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputHead:
    """softcap * tanh(scale * (W h + b) / softcap), as far as a model has each."""

    weight: Tensor  # [V, H]
    bias: Tensor | None
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, V] float32. bfloat16 would round a logit of 20 to steps of an eighth."""
        return self.shaped(matmul_float32(hidden, self.weight.t()))

    def shaped(self, logits: Tensor) -> Tensor:
        """From the plain product, whose memory is used again."""
        if self.bias is not None:
            logits += self.bias
        if self.scale != 1:
            logits *= self.scale
        return logits if self.softcap is None else logits.div_(self.softcap).tanh_().mul_(self.softcap)


def matmul_float32(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product in float32, of whatever the factors are."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


_heads: "WeakKeyDictionary[Any, OutputHead | None]" = WeakKeyDictionary()


def output_head(model: Any) -> OutputHead | None:
    """None: the model makes its logits in a way of its own. Found out once, by comparing."""
    if model not in _heads:
        head = _describe_head(model)
        _heads[model] = head if head is not None and _matches_model(model, head) else None
    return _heads[model]


def _describe_head(model: Any) -> OutputHead | None:
    layer, config = model.get_output_embeddings(), model.config
    if not isinstance(layer, torch.nn.Linear):
        return None
    scale = 1 / getattr(config, "logits_scaling", 1.0) * getattr(config, "logit_scale", 1.0)
    return OutputHead(
        weight=layer.weight, bias=layer.bias, scale=scale, softcap=getattr(config, "final_logit_softcapping", None)
    )


@torch.no_grad()
def _matches_model(model: Any, head: OutputHead) -> bool:
    """On a few tokens, as closely as the model's number type tells."""
    device = head.weight.device
    ids = torch.arange(8, device=device)[None] % head.weight.shape[0]
    inputs = {"input_ids": ids, "position_ids": torch.arange(8, device=device)[None], "use_cache": False}
    with use_plan(VarlenPlan([8], [-1], device)):
        own = model(**inputs).logits[0].float()
        ours = head.logits(model.base_model(**inputs).last_hidden_state[0])
    room = 1e-4 if head.weight.dtype == torch.float32 else 0.05
    return bool((own - ours).abs().max() <= room * (1 + own.abs().max()))


def chunk_rows(vocabulary: int) -> int:
    return max(MIN_ROWS, MAX_CHUNK_LOGITS // vocabulary)


def head_logprobs(head: OutputHead, hidden: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [M] from hidden states [M, H]; logits of a part of them live at a time.

    They are made again in the backward pass, which costs less than keeping them.
    """
    logprobs, entropy = _HeadLogprobs.apply(hidden, head.weight, head, targets, temperatures)
    return logprobs, entropy


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, head: OutputHead, targets: Tensor, temperatures: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = chunk_rows(weight.shape[0])
        parts = []
        for start in range(0, max(1, len(hidden)), rows):
            here = slice(start, start + rows)
            parts.append(_statistics_function(hidden)(head.logits(hidden[here]), targets[here], temperatures[here]))
        logprobs, entropy, logsums = (torch.cat(columns) for columns in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, targets, temperatures, entropy, logsums)
        ctx.head, ctx.rows = head, rows
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprobs_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, targets, temperatures, entropy, logsums = ctx.saved_tensors
        head, weight = ctx.head, ctx.head.weight
        if head.bias is not None and head.bias.requires_grad:
            raise RuntimeError("a trainable bias of the output layer")
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        settings = head.scale, head.softcap, hidden.dtype
        for start in range(0, len(hidden), ctx.rows):
            here = slice(start, start + ctx.rows)
            logits = head.logits(hidden[here])
            columns = (targets, temperatures, entropy, logsums, logprobs_grad, entropy_grad)
            grad = _gradient_function(hidden)(logits, *(each[here] for each in columns), *settings)
            if hidden_grad is not None:
                hidden_grad[here] = grad @ weight
            if weight_grad is not None:
                weight_grad += matmul_float32(grad.t(), hidden[here])
        return hidden_grad, None if weight_grad is None else weight_grad.to(weight.dtype), None, None, None


def logprob_statistics(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the targets, entropies, and the logarithms of the sums, [M] each, at temperature."""
    scaled = logits / temperatures[:, None]
    logsums = scaled.logsumexp(dim=-1)
    logprobs = scaled - logsums[:, None]
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(dim=-1), logsums


def logits_gradient(
    logits: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    entropy: Tensor,
    logsums: Tensor,
    logprobs_grad: Tensor,
    entropy_grad: Tensor,
    scale: float,
    softcap: float | None,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of the plain product: that of the logits, through what shaped them.

    d log p_y / d z_j = [j = y] - p_j and d H / d z_j = -p_j (log p_j + H), over the temperature.
    """
    logprobs = logits / temperatures[:, None] - logsums[:, None]
    pull = logprobs_grad[:, None] + entropy_grad[:, None] * (logprobs + entropy[:, None])
    columns = torch.arange(logits.shape[1], device=logits.device)
    chosen = torch.where(columns == targets[:, None], logprobs_grad[:, None], 0.0)
    grad = (chosen - logprobs.exp() * pull) * (scale / temperatures[:, None])
    if softcap is not None:
        grad = grad * (1 - (logits / softcap).square())
    return grad.to(dtype)


@cache
def _compiled_gradient() -> Callable[..., Tensor]:
    return torch.compile(logits_gradient, dynamic=None)


def _gradient_function(like: Tensor) -> Callable[..., Tensor]:
    """Compiled on a GPU, where each of its steps would pass over all logits; as it is elsewhere."""
    return _compiled_gradient() if like.is_cuda else logits_gradient


def _statistics_function(like: Tensor) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    if not like.is_cuda:
        return logprob_statistics
    from turnwise.models import head_kernel

    return head_kernel.logprob_statistics
