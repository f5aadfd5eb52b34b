"""The learner's attention on a GPU: packed rows through torch's variable-length flash attention.

rows   p p p p | x x x | a a | b b b       a and b continue p: their keys are p's followed by their own, gathered
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from turnwise.models.attention.interface import causal_bias
from turnwise.models.attention.operator import Gradients, Saved

MAX_FLASH_HEAD, FLASH_DTYPES = 256, (torch.float16, torch.bfloat16)
"""Largest head size and the dtypes that flash attention supports."""


class VarlenPlan:
    """Attention plan for packed rows. `parents[i]` is the row that row i continues, or -1; such rows come first.

    `ahead` [N]: later tokens of its row that each token attends to, which flash attention does not support; None: none.
    """

    def __init__(
        self, lengths: Sequence[int], parents: Sequence[int], device: torch.device, ahead: Tensor | None = None
    ) -> None:
        self.ahead = ahead
        starts = [0, *accumulate(lengths)]
        spans = [
            [*([] if parent < 0 else [(starts[parent], starts[parent + 1])]), (starts[row], starts[row + 1])]
            for row, parent in enumerate(parents)
        ]
        key_lengths = [sum(end - start for start, end in span) for span in spans]
        self.max_lengths = max(lengths, default=0), max(key_lengths, default=0)
        self.rows = _to_device(torch.tensor(starts, dtype=torch.int32), device)
        self.key_rows = _to_device(torch.tensor([0, *accumulate(key_lengths)], dtype=torch.int32), device)
        self.gather: Tensor | None = None
        """Indices of the keys that each row reads, row after row; None: every row reads its own keys only."""
        if any(parent >= 0 for parent in parents):
            parts = [torch.arange(start, end) for span in spans for start, end in span]
            self.gather = _to_device(torch.cat(parts), device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
        return self.forward(query, key, value, scale, softcap, window)[0]

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
    ) -> tuple[Tensor, Tensor]:
        key, value = self._gather(key), self._gather(value)
        if not self._uses_flash(query, softcap):
            return self._reference_forward(query, key, value, scale, softcap, window)
        out, logsumexp, *_ = torch.ops.aten._flash_attention_forward(
            *(query, key, value, self.rows, self.key_rows, *self.max_lengths),
            *(0.0, True, False),
            scale=scale,
            **_window_arguments(window),
        )
        return out, logsumexp

    def backward(self, grad: Tensor, saved: Saved, scale: float, softcap: float, window: int) -> Gradients:
        query, key, value, out, logsumexp = saved
        keys, values = self._gather(key), self._gather(value)
        if self._uses_flash(query, softcap):
            rng_state = torch.zeros(2, dtype=torch.uint64, device=grad.device)  # for dropout, which is off
            unused = torch.empty(0, device=grad.device)
            grads = torch.ops.aten._flash_attention_backward(
                *(grad.contiguous(), query, keys, values, out, logsumexp, self.rows, self.key_rows, *self.max_lengths),
                *(0.0, True, rng_state, unused),
                scale=scale,
                **_window_arguments(window),
            )
        else:
            grads = self._reference_backward(grad, query, keys, values, scale, softcap, window)
        return grads[0], self._scatter_gradient(grads[1], key), self._scatter_gradient(grads[2], value)

    def _uses_flash(self, query: Tensor, softcap: float) -> bool:
        return self.ahead is None and _supports_flash(query, softcap)

    def _gather(self, tensor: Tensor) -> Tensor:
        return tensor if self.gather is None else tensor.index_select(0, self.gather)

    def _scatter_gradient(self, grad: Tensor, like: Tensor) -> Tensor:
        """Sum the gradients of all rows that read a prefix, in float32."""
        if self.gather is None:
            return grad
        zeros = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
        return zeros.index_add_(0, self.gather, grad.float()).to(like.dtype)

    def _reference_forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
    ) -> tuple[Tensor, Tensor]:
        """Flash attention's result row by row in torch: for the CPU, and for what flash attention does not support."""
        out, logsumexp = torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)
        group = query.shape[1] // key.shape[1]
        for queries, keys, ahead in self._row_slices():
            q, k, v = _heads(query[queries]), _heads(key[keys], group), _heads(value[keys], group)
            scores, _ = _scores(q, k, ahead, scale, softcap, window)
            logsumexp[:, queries] = scores.logsumexp(dim=-1)
            out[queries] = (scores.softmax(dim=-1) @ v).transpose(0, 1).to(out.dtype)
        return out, logsumexp

    def _reference_backward(
        self, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of `_reference_forward`, written out: autograd does not record inside a custom operator."""
        grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        group = query.shape[1] // key.shape[1]
        for queries, keys, ahead in self._row_slices():
            q, k, v = _heads(query[queries]), _heads(key[keys], group), _heads(value[keys], group)
            out_grad = _heads(grad[queries])
            scores, softcap_grad = _scores(q, k, ahead, scale, softcap, window)
            weights = scores.softmax(dim=-1)
            score_grad = out_grad @ v.transpose(1, 2)
            score_grad = weights * (score_grad - (score_grad * weights).sum(dim=-1, keepdim=True))
            score_grad = score_grad * softcap_grad * scale
            grads[0][queries] = (score_grad @ k).transpose(0, 1).to(query.dtype)
            key_grads = score_grad.transpose(1, 2) @ q, weights.transpose(1, 2) @ out_grad
            for target, key_grad in zip(grads[1:], key_grads, strict=True):
                target[keys] = key_grad.unflatten(0, (-1, group)).sum(dim=1).transpose(0, 1).to(key.dtype)
        return grads

    def _row_slices(self) -> Iterator[tuple[slice, slice, Tensor | None]]:
        """Yield the queries and the keys of each row, and how many later tokens its queries attend to."""
        for queries, keys in zip(pairwise(self.rows.tolist()), pairwise(self.key_rows.tolist()), strict=True):
            yield slice(*queries), slice(*keys), None if self.ahead is None else self.ahead[slice(*queries)]


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without blocking the host."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _supports_flash(query: Tensor, softcap: float) -> bool:
    return query.is_cuda and not softcap and query.shape[-1] <= MAX_FLASH_HEAD and query.dtype in FLASH_DTYPES


def _window_arguments(window: int) -> dict[str, int]:
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


def _heads(tensor: Tensor, group: int = 1) -> Tensor:
    """[T, KV, D] -> [KV * group, T, D], float32"""
    return tensor.float().repeat_interleave(group, dim=1).transpose(0, 1)


def _scores(
    query: Tensor, key: Tensor, ahead: Tensor | None, scale: float, softcap: float, window: int
) -> tuple[Tensor, Tensor | float]:
    """Return masked scores [H, Tq, Tk] and the derivative of the soft cap (1 without one)."""
    scores = query @ key.transpose(1, 2) * scale
    columns = torch.arange(key.shape[1], device=query.device)
    own = columns[key.shape[1] - query.shape[1] :, None]
    bias = causal_bias(own, columns, window or None, None if ahead is None else ahead[:, None])
    if not softcap:
        return scores + bias, 1.0
    capped = torch.tanh(scores / softcap)
    return capped * softcap + bias, 1 - capped.square()
