"""The learner's attention on a GPU: rows packed behind each other, through torch's own variable-length flash attention.

rows   p p p p | x x x | a a | b b b       a and b continue p: their keys are p's and their own, gathered side by side
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from turnwise.models.attention.interface import causal_bias

FLASH_SIZES = (256, torch.float16, torch.bfloat16)
"""The largest head that flash attention takes, and its number types."""


class VarlenPlan:
    """`parents[i]` is the row that row i continues, or -1; rows that others continue come first."""

    def __init__(self, lengths: Sequence[int], parents: Sequence[int], device: torch.device) -> None:
        starts = [0, *accumulate(lengths)]
        spans = [
            [*([] if parent < 0 else [(starts[parent], starts[parent + 1])]), (starts[row], starts[row + 1])]
            for row, parent in enumerate(parents)
        ]
        key_lengths = [sum(end - start for start, end in each) for each in spans]
        self.most = max(lengths, default=0), max(key_lengths, default=0)
        self.rows = _to_device(torch.tensor(starts, dtype=torch.int32), device)
        self.key_rows = _to_device(torch.tensor([0, *accumulate(key_lengths)], dtype=torch.int32), device)
        self.gather: Tensor | None = None
        """Which keys each row reads, behind each other; None: every row its own."""
        if any(parent >= 0 for parent in parents):
            parts = [torch.arange(start, end) for each in spans for start, end in each]
            self.gather = _to_device(torch.cat(parts), device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
        return self.forward(query, key, value, scale, softcap, window)[0]

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int
    ) -> tuple[Tensor, Tensor]:
        key, value = self._gathered(key), self._gathered(value)
        if not _supports_flash(query, softcap):
            return _reference_forward(query, key, value, self.rows, self.key_rows, scale, softcap, window)
        out, logsums, *_ = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            self.rows,
            self.key_rows,
            *self.most,
            0.0,
            True,
            False,
            scale=scale,
            **_window_arguments(window),
        )
        return out, logsums

    def backward(
        self,
        grad: Tensor,
        saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        scale: float,
        softcap: float,
        window: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, out, logsums = saved
        keys, values = self._gathered(key), self._gathered(value)
        if _supports_flash(query, softcap):
            chance = torch.zeros(2, dtype=torch.uint64, device=grad.device)  # of a dropout that there is not
            unused = torch.empty(0, device=grad.device)
            grads = torch.ops.aten._flash_attention_backward(
                *(grad.contiguous(), query, keys, values, out, logsums, self.rows, self.key_rows, *self.most),
                *(0.0, True, chance, unused),
                scale=scale,
                **_window_arguments(window),
            )
        else:
            grads = _reference_backward(grad, query, keys, values, self.rows, self.key_rows, scale, softcap, window)
        return grads[0], self._summed(grads[1], key), self._summed(grads[2], value)

    def _gathered(self, each: Tensor) -> Tensor:
        return each if self.gather is None else each.index_select(0, self.gather)

    def _summed(self, grad: Tensor, like: Tensor) -> Tensor:
        """A prefix's gradient is that of all who read it, added up in float32."""
        if self.gather is None:
            return grad
        zeros = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
        return zeros.index_add_(0, self.gather, grad.float()).to(like.dtype)


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Without a wait of the host, where there is somebody to wait for."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _supports_flash(query: Tensor, softcap: float) -> bool:
    largest, *dtypes = FLASH_SIZES
    return query.is_cuda and not softcap and query.shape[-1] <= largest and query.dtype in dtypes


def _window_arguments(window: int) -> dict[str, int]:
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}


def _reference_forward(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, key_rows: Tensor, scale: float, softcap: float, window: int
) -> tuple[Tensor, Tensor]:
    """Row by row in torch: what flash attention does, for the CPU, soft caps, and heads that it does not take."""
    out, logsums = torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)
    group = query.shape[1] // key.shape[1]
    for here, there in _row_slices(rows, key_rows):
        own, shown = _heads(query[here]), [_heads(each[there], group) for each in (key, value)]
        scores, _ = _scores(own, shown[0], scale, softcap, window)
        logsums[:, here] = scores.logsumexp(dim=-1)
        out[here] = (scores.softmax(dim=-1) @ shown[1]).transpose(0, 1).to(out.dtype)
    return out, logsums


def _reference_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    key_rows: Tensor,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """By hand: an operator's inside has no gradients of its own."""
    grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    group = query.shape[1] // key.shape[1]
    for here, there in _row_slices(rows, key_rows):
        own, shown = _heads(query[here]), [_heads(each[there], group) for each in (key, value)]
        above = _heads(grad[here])
        scores, slope = _scores(own, shown[0], scale, softcap, window)
        weights = scores.softmax(dim=-1)
        pull = above @ shown[1].transpose(1, 2)
        pull = weights * (pull - (pull * weights).sum(dim=-1, keepdim=True)) * slope * scale
        found = pull @ shown[0], pull.transpose(1, 2) @ own, weights.transpose(1, 2) @ above
        grads[0][here] = found[0].transpose(0, 1).to(query.dtype)
        for into, each in zip(grads[1:], found[1:], strict=True):
            into[there] = each.unflatten(0, (-1, group)).sum(dim=1).transpose(0, 1).to(key.dtype)
    return grads


def _row_slices(rows: Tensor, key_rows: Tensor) -> list[tuple[slice, slice]]:
    """Of each row its queries and its keys."""
    starts, key_starts = rows.tolist(), key_rows.tolist()
    queries = (slice(*pair) for pair in pairwise(starts))
    return list(zip(queries, (slice(*pair) for pair in pairwise(key_starts)), strict=True))


def _heads(each: Tensor, group: int = 1) -> Tensor:
    """[T, KV, D] -> [KV * group, T, D] in float32."""
    return each.float().repeat_interleave(group, dim=1).transpose(0, 1)


def _scores(query: Tensor, key: Tensor, scale: float, softcap: float, window: int) -> tuple[Tensor, Tensor | float]:
    """[H, Tq, Tk], minus infinity where nothing is seen, and their slope by what the cap is put on."""
    scores = query @ key.transpose(1, 2) * scale
    columns = torch.arange(key.shape[1], device=query.device)
    unseen = causal_bias(columns[key.shape[1] - query.shape[1] :, None], columns, window or None)
    if not softcap:
        return scores + unseen, 1.0
    bent = torch.tanh(scores / softcap)
    return bent * softcap + unseen, 1 - bent.square()
