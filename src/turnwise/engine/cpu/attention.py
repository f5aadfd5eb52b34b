"""KV cache of slots, and attention of new tokens over it.

Every session has a slot that keeps its keys and values across turns:

keys of a layer    [slots, KV, D, capacity]    positions are adjacent, so that scores are computed for many at once
values             [slots, KV, capacity, D]

slot 0             x x x x x x . . . .         length 6: the session's context so far
slot 1             x x x . . . . . . .

On a CPU attention runs in C (c/attention.c). `torch_attention` does the same in torch, for any device, dtype and shape;
the tests compare the two.
"""

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from turnwise.core.errors import UserError
from turnwise.engine.cpu.kernels import LANES, call_kernel, optional_kernels
from turnwise.models.attention.interface import AttentionCall, causal_bias, masked_attention
from turnwise.models.memory.host import available_memory

BUCKET = 32
"""Attention reads a multiple of this many positions, so that shapes repeat."""
MAX_NARROW_ROW = 8
"""Rows of at most this many new tokens are padded together, longer ones separately."""


def round_up(length: int) -> int:
    return -(-length // BUCKET) * BUCKET


@dataclass(slots=True)
class QueryRow:
    """New tokens of one session, which follow `past` positions that are in its slot."""

    slot: int
    past: int
    new: int
    read: int
    """Number of its last tokens whose output is used."""


class KVCache:
    def __init__(self, slots: int, layers: int = 1) -> None:
        self.slots, self._layer_count = slots, layers
        self.capacity = 8 * BUCKET
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, length: int) -> None:
        """Grow the cache to contexts of this length; its contents stay."""
        if length <= self.capacity:
            return
        old, capacity = self.capacity, max(2 * self.capacity, round_up(length))
        held = sum(tensor.nbytes for layer in self.layers.values() for tensor in layer)
        self._check_memory(capacity, held * capacity // old, held)
        self.capacity = capacity
        for index, (keys, values) in self.layers.items():
            grown = self._empty(keys, *keys.shape[1:3])
            grown[0][..., :old], grown[1][:, :, :old] = keys, values
            self.layers[index] = grown

    def _check_memory(self, tokens: int, needed: int, held: int) -> None:
        """Raise UserError if a cache of `needed` bytes does not fit: the system would kill the process."""
        free = available_memory()
        if free is not None and needed - held > free:
            fit = max(1, (held + free) * self.slots // needed)
            raise UserError(
                f"The KV cache of {self.slots} episodes with up to {tokens} tokens needs {needed / 2**30:.1f} GiB, and "
                f"{(held + free) / 2**30:.1f} GiB are available. Set rollout.in_flight to {fit} or less."
            )

    def layer(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Return the layer's keys and values, allocated on first use, when the shapes are known."""
        if call.layer not in self.layers:
            if not self.layers:
                keys = self._layer_count * self.slots * self.capacity * call.key[0].nbytes
                self._check_memory(self.capacity, 2 * keys, 0)
            self.layers[call.layer] = self._empty(call.key, *call.key.shape[1:])
        return self.layers[call.layer]

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of one slot to others."""
        for keys, values in self.layers.values():
            for target in targets:  # a third of the time of one assignment to all of them by index
                keys[target, :, :, :length] = keys[source, :, :, :length]
                values[target, :, :length] = values[source, :, :length]

    def _empty(self, like: Tensor, heads: int, size: int) -> tuple[Tensor, Tensor]:
        # Zeros rather than uninitialized: masked positions are multiplied by 0, and 0 * NaN would be NaN.
        keys = like.new_zeros(self.slots, heads, size, self.capacity)
        return keys, like.new_zeros(self.slots, heads, self.capacity, size)


class AttentionArguments(ctypes.Structure):
    """`Call` in attention.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "kv", "size", "capacity", "first", "shared", "window")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value")),
        *((f"{name}_{stride}", ctypes.c_int64) for name in ("query", "key", "value") for stride in ("token", "head")),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "out", "ahead")),
    )


class SlotPlan:
    """Attention plan of one pass: new tokens of several sessions, packed in the order of the rows.

    The first `shared` positions are equal in all their slots and are read from one of them. In layer `last`, only
    the tokens whose output is used attend. `ahead` [N]: later tokens of its row that each token attends to; None: none.
    """

    def __init__(
        self,
        cache: KVCache,
        rows: Sequence[QueryRow],
        shared: int = 0,
        last: int | None = None,
        ahead: Tensor | None = None,
    ) -> None:
        self.cache, self.rows, self.last, self.ahead = cache, rows, last, ahead
        self.shared = shared // LANES * LANES
        self.positions = torch.tensor([position for row in rows for position in range(row.past, row.past + row.new)])

    def attend(self, call: AttentionCall) -> Tensor:
        library = optional_kernels()
        supported = call.query.dtype == torch.float32 and call.query.device.type == "cpu" and call.softcap is None
        if library is None or not supported or call.query.shape[-1] % LANES:
            return torch_attention(self.cache, self.rows, call, self.ahead)
        keys, values = self.cache.layer(call)
        new = [
            tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (call.query, call.key, call.value)
        ]
        out = torch.empty(call.query.shape)
        arguments = AttentionArguments(
            *(call.query.shape[1], *keys.shape[1:], self.rows[0].slot, self.shared, call.window or 0, call.scale),
            *(tensor.data_ptr() for tensor in new),
            *(stride for tensor in new for stride in tensor.stride()[:2]),
            *(tensor.data_ptr() for tensor in (keys, values, out)),
            None if self.ahead is None else self.ahead.data_ptr(),
        )
        rows = self._row_array(call.layer == self.last)
        pointer, count = ctypes.c_void_p(rows.buffer_info()[0]), ctypes.c_int64(len(self.rows))
        call_kernel(library.attend, arguments, pointer, count)
        return out

    def _row_array(self, last: bool) -> "array[int]":
        """Return the rows as an array of `Row` in attention.c."""
        rows, token = array("q"), 0
        for row in self.rows:
            rows.extend((row.slot, row.past, row.new, row.new - row.read if last else 0, token))
            token += row.new
        return rows


def torch_attention(
    cache: KVCache, rows: Sequence[QueryRow], call: AttentionCall, ahead: Tensor | None = None
) -> Tensor:
    """Write the new tokens to their slots and attend to each session's context. [N, H, D]"""
    outputs, start = list[Tensor](), 0
    for _, group in groupby(rows, key=lambda row: row.new <= MAX_NARROW_ROW):
        similar = list(group)
        count = sum(row.new for row in similar)
        tokens = slice(start, start + count)
        new = call.query[tokens], call.key[tokens], call.value[tokens], None if ahead is None else ahead[tokens]
        outputs.append(_attend_padded(cache, similar, call, *new))
        start += count
    return torch.cat(outputs)


def _attend_padded(
    cache: KVCache,
    rows: Sequence[QueryRow],
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ahead: Tensor | None,
) -> Tensor:
    """Each session is a row of T queries, padded on the right.

    tokens  a a b c c c      rows  a a .
                                   b . .
                                   c c c
    """
    keys, values = cache.layer(call)
    slots, past, new = torch.tensor([[row.slot, row.past, row.new] for row in rows], device=key.device).T
    columns = torch.arange(int(new.max()), device=key.device)
    inside = columns < new[:, None]  # [B, T]
    positions = past[:, None] + columns
    span = min(round_up(int((past + new).max())), cache.capacity)
    token_slots = slots.repeat_interleave(new)  # [N]
    keys[token_slots, :, :, positions[inside]] = key
    values[token_slots, :, positions[inside]] = value
    queries = query.new_zeros(*inside.shape, *query.shape[1:])  # [B, T, H, D]
    queries[inside] = query
    seen = None
    if ahead is not None:
        seen = torch.zeros_like(positions)
        seen[inside] = ahead
        seen = seen[:, :, None]
    mask = causal_bias(positions[:, :, None], torch.arange(span, device=key.device), call.window, seen)[:, None]
    context = keys[slots, :, :, :span].transpose(2, 3).contiguous(), values[slots, :, :span]
    return masked_attention(call, queries.transpose(1, 2), *context, mask).transpose(1, 2)[inside]
