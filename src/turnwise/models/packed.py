"""Attention for rows packed behind each other without padding: a row sees itself and the prefix that it continues.

    rows        p p p p p | a a a | b b b b | q q | c c        root p with children a and b, root q with child c
    a sees      p p p p p   a a a                               what members of a group share is computed once
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from turnwise.models.attention import AttentionCall, masked_attention, visible


class PackedPlan:
    """Lays the N packed tokens out as padded rows inside attention only; every other layer runs on the packed ones.

    `parents[i]` is the row that row i continues, or -1. Roots come before all children and have none above them.
    """

    def __init__(self, lengths: Sequence[int], parents: Sequence[int], device: torch.device) -> None:
        self.num_roots = sum(parent < 0 for parent in parents)
        if any((parent < 0) != (row < self.num_roots) or parent >= self.num_roots for row, parent in enumerate(parents)):
            raise ValueError("rows that continue others come after all roots, and continue roots only")
        self.roots = _Rows(lengths[: self.num_roots], device)
        self.children = _Rows(lengths[self.num_roots :], device)
        self.parents = torch.tensor(parents[self.num_roots :], device=device)
        self.masks: dict[int | None, Tensor] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        split = self.roots.tokens
        query, key, value = (self.roots.unpack(each[:split]) for each in (call.query, call.key, call.value))
        root = self.roots.pack(self._causal(call, query, key, value))
        if not self.children.sizes:
            return root
        query, own_key, own_value = (self.children.unpack(each[split:]) for each in (call.query, call.key, call.value))
        # Whole rows are selected: their gradient is a sum of few large slices, in a fixed order.
        keys = torch.cat([key.index_select(0, self.parents), own_key], dim=2)
        values = torch.cat([value.index_select(0, self.parents), own_value], dim=2)
        child = masked_attention(call, query, keys, values, self._mask(call))
        return torch.cat([root, self.children.pack(child)])

    def _causal(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if call.softcap is None and (call.window is None or call.window >= self.roots.longest):
            gqa = key.shape[1] != query.shape[1]
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=call.scale, enable_gqa=gqa
            )
        columns = self.roots.columns
        return masked_attention(call, query, key, value, visible(columns[:, None], columns, call.window)[None, None])

    def _mask(self, call: AttentionCall) -> Tensor:
        """What children see: their root's tokens, then their own up to themselves. [C, 1, T, P + T]"""
        if call.window not in self.masks:
            above = self.roots.size_tensor[self.parents][:, None]  # [C, 1]
            positions = above + self.children.columns  # [C, T]
            before = self.roots.columns.expand(len(self.parents), -1)  # [C, P]
            keys = torch.cat([torch.where(before < above, before, self._never), positions], dim=1)
            self.masks[call.window] = visible(positions[:, :, None], keys[:, None, :], call.window)[:, None]
        return self.masks[call.window]

    @property
    def _never(self) -> int:
        """A position that no query reaches."""
        return 1 << 40


class _Rows:
    """Rows of different sizes behind each other, and the same as [B, T], padded on the right.

    Attention is causal and padding is last, so no token sees padding.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.sizes = list(sizes)
        self.tokens, self.longest = sum(sizes), max(sizes, default=0)
        self.even = len(set(sizes)) <= 1
        self.columns = torch.arange(self.longest, device=device)
        self.size_tensor = torch.tensor(sizes, device=device, dtype=torch.long)
        starts = self.size_tensor.cumsum(0) - self.size_tensor
        inside = self.columns < self.size_tensor[:, None]
        self.gather = torch.where(inside, starts[:, None] + self.columns, 0).flatten()  # [B*T] -> N
        self.scatter = inside.flatten().nonzero().squeeze(1)  # [N] -> B*T

    def unpack(self, packed: Tensor) -> Tensor:
        """[N, H, D] -> [B, H, T, D]"""
        rows = packed if self.even else packed[self.gather]
        return rows.view(len(self.sizes), self.longest, *packed.shape[1:]).transpose(1, 2)

    def pack(self, rows: Tensor) -> Tensor:
        """[B, H, T, D] -> [N, H, D]"""
        flat = rows.transpose(1, 2).flatten(0, 1)
        return flat if self.even else flat[self.scatter]
