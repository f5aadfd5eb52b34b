"""Paged KV cache, the attention plan over it, and its size for a model and a device."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from turnwise.engine.paged import reference
from turnwise.models.attention.interface import AttentionCall
from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.varlen import VarlenPlan
from turnwise.models.memory.plan import PAGE


class PagedCache:
    """Keys and values of all layers. Page 0 takes what padding rows write."""

    def __init__(self, shape: "CacheShape", pages: int, dtype: torch.dtype, device: torch.device) -> None:
        self.count = pages
        self._shape, self._dtype, self._device = shape, dtype, device
        self.layers: list[tuple[Tensor, Tensor]] = []
        """(keys, values) of each layer; empty while the memory is released."""
        self.allocate()

    def allocate(self) -> None:
        """Allocate memory for all pages unless it is allocated. Contents are lost when it is released."""
        if not self.layers:
            self.layers = [(self._zeros(heads, size), self._zeros(heads, size)) for heads, size in self._shape]

    def release(self) -> None:
        self.layers = []

    def _zeros(self, heads: int, size: int) -> Tensor:
        return torch.zeros(self.count, heads, PAGE, size, dtype=self._dtype, device=self._device)


CacheShape = Sequence[tuple[int, int]]
"""(number of key-value heads, head size) of each layer."""


def page_bytes(shape: CacheShape, dtype: torch.dtype) -> int:
    return sum(2 * PAGE * heads * size * dtype.itemsize for heads, size in shape)


class PagedPlan:
    """Attention plan of one forward over N tokens of several sessions.

    `blocks` [4, NB] int32: neighbouring tokens of one session, at most `tokens` each; see `reference.attend`.
    `ahead` [N]: later tokens of the forward that each token attends to; None: none.
    """

    def __init__(
        self,
        pages: PagedCache,
        tables: Tensor,
        *,
        slots: Tensor,
        positions: Tensor,
        blocks: Tensor,
        tokens: int,
        ahead: Tensor | None = None,
    ) -> None:
        self.pages, self.tables, self.ahead = pages, tables, ahead
        self.slots, self.positions, self.blocks, self.tokens = slots, positions, blocks, tokens
        self.layer = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
        keys, values = self.pages.layers[self.layer]
        self.layer += 1
        call = AttentionCall(
            layer=self.layer,
            query=query,
            key=key,
            value=value,
            scale=scale,
            softcap=softcap or None,
            window=window or None,
        )
        key, value = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (key, value))
        if query.is_cuda:
            from turnwise.engine.paged import kernels

            kernels.write(key, value, keys, values, self.tables, self.slots, self.positions)
            out = query.new_empty(query.shape)
            return kernels.attend(call, keys, values, self.tables, self.blocks, out, self.tokens, self.ahead)
        reference.write(key, value, keys, values, self.tables, self.slots, self.positions)
        out = query.new_zeros(query.shape)
        return reference.attend(call, keys, values, self.tables, self.blocks, out, self.ahead)


class _ShapeRecorder(VarlenPlan):
    """Attends, and records the shape of the keys."""

    def __init__(self, length: int, device: torch.device) -> None:
        super().__init__([length], [-1], device)
        self.shapes: list[tuple[int, int]] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
        self.shapes.append((key.shape[1], key.shape[2]))
        return super().attend(query, key, value, scale, softcap, window)


@torch.no_grad()
def cache_shape(model: Any) -> CacheShape:
    """Return the model's cache shape, recorded in one short forward."""
    device = model.get_input_embeddings().weight.device
    recorder, ids = _ShapeRecorder(8, device), torch.arange(8, device=device)[None]
    with use_plan(recorder):
        model.base_model(input_ids=ids, position_ids=ids, use_cache=False)
    return recorder.shapes


def max_pages(slots: int, max_context: int) -> int:
    """Return the pages that all slots together can use, plus the padding page."""
    return slots * -(-max_context // PAGE) + 1


def pages_that_fit(page_size: int, count: int, device: torch.device, share: float) -> int:
    """Return `count`, or as many pages as fit into this share of the free memory."""
    if device.type != "cuda":
        return count
    free, _ = torch.cuda.mem_get_info(device)
    return max(2, min(count, int(free * share) // page_size))
