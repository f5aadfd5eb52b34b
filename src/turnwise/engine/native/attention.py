"""A slot of keys and values for every session, kept across turns.

keys of a layer    [slots, KV, D, capacity]    positions lie side by side: scores are made for many of them at once
values             [slots, KV, capacity, D]

slot 0             x x x x x x . . . .         <- length 6: what this session's context has so far
slot 1             x x x . . . . . . .
"""

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from turnwise.engine.native.kernels import LANES, call_kernel, optional_kernels
from turnwise.models.attention.interface import AttentionCall, causal_bias, masked_attention

BUCKET = 32
"""Attention reads up to a multiple of this many positions, so that shapes repeat."""


def round_up(length: int) -> int:
    return -(-length // BUCKET) * BUCKET


@dataclass(slots=True)
class QueryRow:
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
        old, self.capacity = self.capacity, max(2 * self.capacity, round_up(length))
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


MAX_NARROW_ROW = 8
"""Rows of at most so many new tokens are laid out together, longer ones apart from them."""


def torch_attention(cache: KVCache, stretches: Sequence[QueryRow], call: AttentionCall) -> Tensor:
    """Writes the new tokens to their slots; each sees its session's context up to itself. [N, H, D]"""
    parts, start = list[Tensor](), 0
    for _, alike in groupby(stretches, key=lambda each: each.new <= MAX_NARROW_ROW):
        rows = list(alike)
        count = sum(each.new for each in rows)
        here = slice(start, start + count)
        parts.append(_attend_padded(cache, rows, call, call.query[here], call.key[here], call.value[here]))
        start += count
    return torch.cat(parts)


def _attend_padded(
    cache: KVCache, stretches: Sequence[QueryRow], call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """A session is a row of T queries, those with fewer tokens padded.

    tokens  a a b c c c      rows  a a .
                                   b . .
                                   c c c
    """
    keys, values = cache.layer(call)
    slots, past, new = torch.tensor([[each.slot, each.past, each.new] for each in stretches], device=key.device).T
    columns = torch.arange(int(new.max()), device=key.device)
    inside = columns < new[:, None]  # [B, T]
    positions = past[:, None] + columns
    span = min(round_up(int((past + new).max())), cache.capacity)
    token_slots = slots.repeat_interleave(new)  # [N]
    keys[token_slots, :, :, positions[inside]] = key
    values[token_slots, :, positions[inside]] = value
    queries = query.new_zeros(*inside.shape, *query.shape[1:])  # [B, T, H, D]
    queries[inside] = query
    mask = causal_bias(positions[:, :, None], torch.arange(span, device=key.device), call.window)[:, None]
    own = keys[slots, :, :, :span].transpose(2, 3).contiguous(), values[slots, :, :span]
    return masked_attention(call, queries.transpose(1, 2), *own, mask).transpose(1, 2)[inside]


class AttentionArguments(ctypes.Structure):
    """`Call` of attention.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "kv", "size", "capacity", "first", "shared", "window")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value")),
        *((f"{name}_{stride}", ctypes.c_int64) for name in ("query", "key", "value") for stride in ("token", "head")),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "out")),
    )


class SlotPlan:
    """New tokens of several sessions, packed in the order of the stretches.

    `shared`: so many positions are equal in all their slots, and are read from one of them. In layer `last`, only the
    tokens that are read look at others.
    """

    def __init__(self, cache: KVCache, stretches: Sequence[QueryRow], shared: int = 0, last: int | None = None) -> None:
        self.cache, self.stretches, self.last = cache, stretches, last
        self.shared = shared // LANES * LANES
        self.positions = torch.tensor([place for each in stretches for place in range(each.past, each.past + each.new)])

    def attend(self, call: AttentionCall) -> Tensor:
        library = optional_kernels()
        fits = call.query.dtype == torch.float32 and call.query.device.type == "cpu" and call.softcap is None
        if library is None or not fits or call.query.shape[-1] % LANES:
            return torch_attention(self.cache, self.stretches, call)
        keys, values = self.cache.layer(call)
        new = [each if each.stride(-1) == 1 else each.contiguous() for each in (call.query, call.key, call.value)]
        out = torch.empty(call.query.shape)
        about = AttentionArguments(
            *(call.query.shape[1], *keys.shape[1:], self.stretches[0].slot, self.shared, call.window or 0, call.scale),
            *(each.data_ptr() for each in new),
            *(stride for each in new for stride in each.stride()[:2]),
            *(each.data_ptr() for each in (keys, values, out)),
        )
        rows = self._rows(call.layer == self.last)
        call_kernel(library.attend, about, ctypes.c_void_p(rows.buffer_info()[0]), ctypes.c_int64(len(self.stretches)))
        return out

    def _rows(self, last: bool) -> "array[int]":
        """`Row` of attention.c, for each stretch."""
        rows, token = array("q"), 0
        for each in self.stretches:
            rows.extend((each.slot, each.past, each.new, each.new - each.read if last else 0, token))
            token += each.new
        return rows
