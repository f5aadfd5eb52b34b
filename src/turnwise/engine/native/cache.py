"""A slot of keys and values for every session, kept across turns, and the two plans that read and write it.

    keys of a layer  [slots, KV, capacity, D]
    slot 0           k k k k k k . . . .      <- length 6: what this session's context has so far
    slot 1           k k k . . . . . . .
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.models.attention import AttentionCall, masked_attention, visible

BUCKET = 32
"""Attention reads up to a multiple of this many positions, so that shapes repeat."""


def bucketed(length: int) -> int:
    return -(-length // BUCKET) * BUCKET


class KVCache:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.capacity = 8 * BUCKET
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, length: int) -> None:
        """Makes room for contexts of this length; what is held stays."""
        if length <= self.capacity:
            return
        old, self.capacity = self.capacity, max(2 * self.capacity, bucketed(length))
        for index, (keys, values) in self.layers.items():
            grown = self._empty(keys), self._empty(values)
            grown[0][:, :, :old], grown[1][:, :, :old] = keys, values
            self.layers[index] = grown

    def layer(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """The layer's tensors, made when the model first shows its shapes."""
        if call.layer not in self.layers:
            self.layers[call.layer] = self._empty(call.key[:, :, None]), self._empty(call.value[:, :, None])
        return self.layers[call.layer]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """The first `length` positions of one slot into others."""
        into = torch.tensor(targets)
        for keys, values in self.layers.values():
            keys[into, :, :length] = keys[source, :, :length]
            values[into, :, :length] = values[source, :, :length]

    def _empty(self, like: Tensor) -> Tensor:  # like: [*, KV, *, D]
        # Zeros, not garbage: masked positions are multiplied by 0, and 0 * NaN would be NaN.
        return like.new_zeros(self.slots, like.shape[1], self.capacity, like.shape[-1])


class PrefillPlan:
    """New tokens of several sessions, packed: written to their slots, each seeing its own context."""

    def __init__(self, cache: KVCache, slots: Sequence[int], past: Sequence[int], new: Sequence[int]) -> None:
        self.cache = cache
        device = torch.device("cpu")
        self.slots = torch.tensor(slots, device=device)  # [B]
        self.span = min(bucketed(max(p + n for p, n in zip(past, new, strict=True))), cache.capacity)
        fresh = torch.tensor(new, device=device)  # [B]
        columns = torch.arange(max(new), device=device)
        inside = columns < fresh[:, None]  # [B, T]
        starts = fresh.cumsum(0) - fresh
        self.rows, self.longest = len(new), max(new)
        self.gather = torch.where(inside, starts[:, None] + columns, 0).flatten()  # [B*T] -> N
        self.scatter = inside.flatten().nonzero().squeeze(1)  # [N] -> B*T
        self.query_positions = torch.tensor(past, device=device)[:, None] + columns  # [B, T]
        self.positions = self.query_positions.flatten()[self.scatter]  # [N]
        self.token_slots = self.slots.repeat_interleave(fresh)  # [N]
        self.last = fresh.cumsum(0) - 1  # [B] -> N: whose logits are sampled from
        self.masks: dict[int | None, Tensor] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        keys, values = self.cache.layer(call)
        keys[self.token_slots, :, self.positions] = call.key
        values[self.token_slots, :, self.positions] = call.value
        query = call.query[self.gather].view(self.rows, self.longest, *call.query.shape[1:]).transpose(1, 2)
        out = masked_attention(
            call,
            query,
            keys[self.slots, :, : self.span],
            values[self.slots, :, : self.span],
            self._mask(call.window),
        )
        return out.transpose(1, 2).flatten(0, 1)[self.scatter]

    def _mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            seen = visible(self.query_positions[:, :, None], torch.arange(self.span), window)
            self.masks[window] = seen[:, None]  # [B, 1, T, span]
        return self.masks[window]


class DecodePlan:
    """One new token for each of B sessions.

    Attention runs over all slots up to the highest in use, as a view: gathering the rows in use would copy the cache.
    Where few of them are in use, the copy is the smaller cost.
    """

    def __init__(self, cache: KVCache, slots: Tensor, positions: Tensor) -> None:
        self.cache = cache
        self.slots = slots  # [B]
        self.positions = positions  # [B]
        self.span = min(bucketed(int(positions.max()) + 1), cache.capacity)
        top = int(slots.max()) + 1
        self.gathers = 2 * len(slots) < top
        self.dense = len(slots) == top
        self.row_positions = positions
        if not self.gathers and not self.dense:
            self.row_positions = positions.new_zeros(top).index_copy_(0, slots, positions)
        self.biases: dict[int | None, Tensor] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        keys, values = self.cache.layer(call)
        keys[self.slots, :, self.positions] = call.key
        values[self.slots, :, self.positions] = call.value
        query, rows = call.query, len(self.row_positions)
        if self.gathers:
            keys, values = keys[self.slots, :, : self.span], values[self.slots, :, : self.span]
        else:
            keys, values = keys[:rows, :, : self.span], values[:rows, :, : self.span]
            if not self.dense:
                query = query.new_zeros(rows, *query.shape[1:]).index_copy_(0, self.slots, query)
        out = masked_attention(call, query[:, :, None], keys, values, self._mask(call.window))[:, :, 0]
        return out if self.gathers or self.dense else out[self.slots]

    def _mask(self, window: int | None) -> Tensor:
        if window not in self.biases:
            seen = visible(self.row_positions[:, None], torch.arange(self.span), window)
            self.biases[window] = seen[:, None, None]  # [rows, 1, 1, span]
        return self.biases[window]
