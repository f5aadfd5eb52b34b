"""What a pass attends to: where its tokens go in the pages, and what each block of them sees."""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.engine.paged import twins
from turnwise.engine.paged.sessions import PAGE
from turnwise.models.attention import AttentionCall


class Pages:
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

    `blocks` [4, NB] int32: neighbouring tokens of one session, `tokens` of them at most; see `twins.attend`.
    """

    def __init__(
        self, pages: Pages, tables: Tensor, *, slots: Tensor, positions: Tensor, blocks: Tensor, tokens: int
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
            from turnwise.engine.paged import launch

            launch.write(key, value, keys, values, self.tables, self.slots, self.positions)
            out = query.new_empty(query.shape)
            return launch.attend(call, keys, values, self.tables, self.blocks, out, self.tokens)
        twins.write(key, value, keys, values, self.tables, self.slots, self.positions)
        return twins.attend(call, keys, values, self.tables, self.blocks, query.new_zeros(query.shape))
