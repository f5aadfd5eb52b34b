"""The output layer apart from the trunk: float32 logits, and log-probabilities without holding all logits at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from turnwise.core.samples import AllowedTokens
from turnwise.models.allowed_tokens import NEVER, find_forbidden
from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.varlen import VarlenPlan

MAX_CHUNK_LOGITS, MIN_ROWS = 1 << 28, 64
"""Upper bound of the logits held at once (1 GiB of float32), but at least this many rows of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputHead:
    """logits = softcap * tanh(scale * (W h + b) / softcap), without the parts that the model does not have."""

    weight: Tensor  # [V, H]
    bias: Tensor | None
    scale: float = 1.0
    softcap: float | None = None
    never_sampled: Tensor | None = None
    """Ids whose logit is NEVER."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [M, V] in float32: bfloat16 would round a logit of 20 to multiples of 1/8."""
        return self.finish(matmul_float32(hidden, self.weight.t()))

    def finish(self, logits: Tensor) -> Tensor:
        """Apply bias, scale and soft cap to W h, in place."""
        if self.bias is not None:
            logits += self.bias
        if self.scale != 1:
            logits *= self.scale
        if self.softcap is not None:
            logits = logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits if self.never_sampled is None else logits.index_fill_(-1, self.never_sampled, NEVER)


def mask_output(model: Any, token_ids: Sequence[int]) -> None:
    """Give these tokens the logit NEVER, for the engine and the learner alike."""
    layer = model.get_output_embeddings()
    layer.register_buffer("never_sampled", torch.tensor(list(token_ids)), persistent=False)
    layer.register_forward_hook(_mask_logits)


def _mask_logits(layer: Any, _: tuple[Tensor, ...], logits: Tensor) -> Tensor:
    """Forward hook. Not a lambda, which cannot be pickled with the model."""
    return logits.index_fill(-1, layer.never_sampled, NEVER)


def matmul_float32(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product in float32, whatever the dtype of the factors."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


_has_plain_head: "WeakKeyDictionary[Any, bool]" = WeakKeyDictionary()


def output_head(model: Any) -> OutputHead | None:
    """Return the model's output head, or None if its logits are computed in another way. Verified once per model."""
    head = _describe_head(model)  # anew each time: the weight of a sharded model is another tensor while it runs
    if head is not None and model not in _has_plain_head:
        _has_plain_head[model] = _matches_model(model, head)
    return head if head is not None and _has_plain_head[model] else None


def _describe_head(model: Any) -> OutputHead | None:
    layer, config = model.get_output_embeddings(), model.config
    if not isinstance(layer, torch.nn.Linear):
        return None
    scale = 1 / getattr(config, "logits_scaling", 1.0) * getattr(config, "logit_scale", 1.0)
    return OutputHead(
        weight=layer.weight,
        bias=layer.bias,
        scale=scale,
        softcap=getattr(config, "final_logit_softcapping", None),
        never_sampled=getattr(layer, "never_sampled", None),
    )


@torch.no_grad()
def _matches_model(model: Any, head: OutputHead) -> bool:
    """Compare with the model's own logits on a few tokens, to the precision of its dtype."""
    device = head.weight.device
    ids = torch.arange(8, device=device)[None] % head.weight.shape[0]
    inputs = {"input_ids": ids, "position_ids": torch.arange(8, device=device)[None], "use_cache": False}
    with use_plan(VarlenPlan([8], [-1], device)):
        expected = model(**inputs).logits[0].float()
        actual = head.logits(model.base_model(**inputs).last_hidden_state[0])
    tolerance = 1e-4 if head.weight.dtype == torch.float32 else 0.05
    return bool((expected - actual).abs().max() <= tolerance * (1 + expected.abs().max()))


def chunk_rows(vocabulary: int) -> int:
    return max(MIN_ROWS, MAX_CHUNK_LOGITS // vocabulary)


def head_logprobs(
    head: OutputHead, hidden: Tensor, targets: Tensor, temperatures: Tensor, allowed: AllowedTokens | None = None
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy [M] of hidden states [M, H], computing the logits in chunks.

    The backward pass recomputes the logits, which costs less than keeping them.
    """
    logprobs, entropy = _HeadLogprobs.apply(hidden, head.weight, head, targets, temperatures, allowed)
    return logprobs, entropy


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        head: OutputHead,
        targets: Tensor,
        temperatures: Tensor,
        allowed: AllowedTokens | None,
    ) -> tuple[Tensor, Tensor]:
        rows = chunk_rows(weight.shape[0])
        chunks = []
        for start in range(0, max(1, len(hidden)), rows):
            here = slice(start, start + rows)
            logits = _chunk_logits(head, hidden, allowed, here)
            chunks.append(_statistics_function(hidden)(logits, targets[here], temperatures[here]))
        logprobs, entropy, logsumexp = (torch.cat(columns) for columns in zip(*chunks, strict=True))
        ctx.save_for_backward(hidden, targets, temperatures, entropy, logsumexp)
        ctx.head, ctx.rows, ctx.allowed = head, rows, allowed
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprobs_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, targets, temperatures, entropy, logsumexp = ctx.saved_tensors
        head, weight = ctx.head, ctx.head.weight
        if head.bias is not None and head.bias.requires_grad:
            raise RuntimeError("a trainable bias of the output layer is not supported")
        hidden_grad = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        settings = head.scale, head.softcap, hidden.dtype
        for start in range(0, len(hidden), ctx.rows):
            here = slice(start, start + ctx.rows)
            logits = _chunk_logits(head, hidden, ctx.allowed, here)
            columns = (targets, temperatures, entropy, logsumexp, logprobs_grad, entropy_grad)
            grad = _gradient_function(hidden)(logits, *(column[here] for column in columns), *settings)
            if hidden_grad is not None:
                hidden_grad[here] = grad @ weight
            if weight_grad is not None:
                weight_grad += matmul_float32(grad.t(), hidden[here])
        return hidden_grad, None if weight_grad is None else weight_grad.to(weight.dtype), None, None, None, None


def _chunk_logits(head: OutputHead, hidden: Tensor, allowed: AllowedTokens | None, here: slice) -> Tensor:
    logits = head.logits(hidden[here])
    return logits if allowed is None else logits.masked_fill_(find_forbidden(allowed, here, logits.shape[1]), NEVER)


def logprob_statistics(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities of the targets, entropies and log-sum-exps at the given temperatures, [M] each."""
    scaled = logits / temperatures[:, None]
    logsumexp = scaled.logsumexp(dim=-1)
    logprobs = scaled - logsumexp[:, None]
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(dim=-1), logsumexp


def logits_gradient(
    logits: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    entropy: Tensor,
    logsumexp: Tensor,
    logprobs_grad: Tensor,
    entropy_grad: Tensor,
    scale: float,
    softcap: float | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return the gradient of W h: that of the logits, back through scale and soft cap.

    d log p_y / d z_j = [j = y] - p_j and d H / d z_j = -p_j (log p_j + H), over the temperature.
    """
    logprobs = logits / temperatures[:, None] - logsumexp[:, None]
    weights = logprobs_grad[:, None] + entropy_grad[:, None] * (logprobs + entropy[:, None])
    columns = torch.arange(logits.shape[1], device=logits.device)
    chosen = torch.where(columns == targets[:, None], logprobs_grad[:, None], 0.0)
    grad = (chosen - logprobs.exp() * weights) * (scale / temperatures[:, None])
    if softcap is not None:
        grad = grad * (1 - (logits / softcap).square())
    return grad.to(dtype)


@cache
def _compiled_gradient() -> Callable[..., Tensor]:
    return torch.compile(logits_gradient, dynamic=None)


def _gradient_function(like: Tensor) -> Callable[..., Tensor]:
    """Return `logits_gradient`, compiled on a GPU: in eager mode each operation would pass over all logits."""
    return _compiled_gradient() if like.is_cuda else logits_gradient


def _statistics_function(like: Tensor) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    if not like.is_cuda:
        return logprob_statistics
    from turnwise.models import head_kernel

    return head_kernel.logprob_statistics
