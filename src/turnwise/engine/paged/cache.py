"""What a pass attends to: where its tokens go in the pages, and what each block of them sees."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from turnwise.engine.paged import reference
from turnwise.engine.paged.state import PAGE
from turnwise.models.attention.interface import AttentionCall
from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.varlen import VarlenPlan


class PagedCache:
    """Keys and values of all layers. Page 0 belongs to nobody: what nobody says is written there."""

    def __init__(self, shape: "CacheShape", pages: int, dtype: torch.dtype, device: torch.device) -> None:
        self.count = pages
        self._shape, self._dtype, self._device = shape, dtype, device
        self.layers: list[tuple[Tensor, Tensor]] = []
        """Of each its keys and its values; empty while their memory is given back."""
        self.take()

    def take(self) -> None:
        """Memory for all pages, where there is none yet. What they held is gone."""
        if not self.layers:
            self.layers = [(self._zeros(heads, size), self._zeros(heads, size)) for heads, size in self._shape]

    def give_back(self) -> None:
        self.layers = []

    def _zeros(self, heads: int, size: int) -> Tensor:
        return torch.zeros(self.count, heads, PAGE, size, dtype=self._dtype, device=self._device)


CacheShape = Sequence[tuple[int, int]]
"""Of each layer the number of key-value heads and their size."""


def page_bytes(shape: CacheShape, dtype: torch.dtype) -> int:
    return sum(2 * PAGE * heads * size * dtype.itemsize for heads, size in shape)


class PagedPlan:
    """One forward over N tokens of several sessions.

    `blocks` [4, NB] int32: neighbouring tokens of one session, `tokens` of them at most; see `reference.attend`.
    """

    def __init__(
        self, pages: PagedCache, tables: Tensor, *, slots: Tensor, positions: Tensor, blocks: Tensor, tokens: int
    ) -> None:
        self.pages, self.tables = pages, tables
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
        key, value = (each if each.stride(-1) == 1 else each.contiguous() for each in (key, value))
        if query.is_cuda:
            from turnwise.engine.paged import kernels

            kernels.write(key, value, keys, values, self.tables, self.slots, self.positions)
            out = query.new_empty(query.shape)
            return kernels.attend(call, keys, values, self.tables, self.blocks, out, self.tokens)
        reference.write(key, value, keys, values, self.tables, self.slots, self.positions)
        return reference.attend(call, keys, values, self.tables, self.blocks, query.new_zeros(query.shape))


class _ShapeRecorder(VarlenPlan):
    """Attends, and notes what it was given."""

    def __init__(self, length: int, device: torch.device) -> None:
        super().__init__([length], [-1], device)
        self.shapes: list[tuple[int, int]] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
        self.shapes.append((key.shape[1], key.shape[2]))
        return super().attend(query, key, value, scale, softcap, window)


@torch.no_grad()
def cache_shape(model: Any) -> CacheShape:
    """Asked of the model itself, by one short forward."""
    device = model.get_input_embeddings().weight.device
    look, ids = _ShapeRecorder(8, device), torch.arange(8, device=device)[None]
    with use_plan(look):
        model.base_model(input_ids=ids, position_ids=ids, use_cache=False)
    return look.shapes


def max_pages(slots: int, longest: int) -> int:
    """As many as could ever be used, and one that is nobody's."""
    return slots * -(-longest // PAGE) + 1


def pages_that_fit(bytes_each: int, wanted: int, device: torch.device, share: float) -> int:
    """As many as are wanted, or as fit into this share of the memory that is free."""
    if device.type != "cuda":
        return wanted
    free, _ = torch.cuda.mem_get_info(device)
    return max(2, min(wanted, int(free * share) // bytes_each))
