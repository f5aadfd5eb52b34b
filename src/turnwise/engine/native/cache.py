"""A slot of keys and values for every session, kept across turns.

keys of a layer    [slots, KV, D, capacity]    positions lie side by side: scores are made for many of them at once
values             [slots, KV, capacity, D]

slot 0             x x x x x x . . . .         <- length 6: what this session's context has so far
slot 1             x x x . . . . . . .
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.models.attention import AttentionCall

BUCKET = 32
"""Attention reads up to a multiple of this many positions, so that shapes repeat."""


def bucketed(length: int) -> int:
    return -(-length // BUCKET) * BUCKET


@dataclass(slots=True)
class Stretch:
    """New tokens of one session: they follow `past` positions that its slot holds already."""

    slot: int
    past: int
    new: int
    read: int
    """Of how many of them, the last ones, the output is read."""


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
            grown = self._empty(keys, *keys.shape[1:3])
            grown[0][..., :old], grown[1][:, :, :old] = keys, values
            self.layers[index] = grown

    def layer(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """The layer's tensors, made when the model first shows its shapes."""
        if call.layer not in self.layers:
            self.layers[call.layer] = self._empty(call.key, *call.key.shape[1:])
        return self.layers[call.layer]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """The first `length` positions of one slot into others."""
        into = torch.tensor(targets)
        for keys, values in self.layers.values():
            # Copies: torch refuses to write from a view of all positions into others of the same tensor.
            keys[into, :, :, :length] = keys[source, :, :, :length].clone()
            values[into, :, :length] = values[source, :, :length].clone()

    def _empty(self, like: Tensor, heads: int, size: int) -> tuple[Tensor, Tensor]:
        # Zeros, not garbage: masked positions are multiplied by 0, and 0 * NaN would be NaN.
        keys = like.new_zeros(self.slots, heads, size, self.capacity)
        return keys, like.new_zeros(self.slots, heads, self.capacity, size)
