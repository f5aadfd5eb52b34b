"""A slot of keys and values for every session, kept across turns, and the plan that reads and writes it.

keys of a layer  [slots, KV, capacity, D]
slot 0           k k k k k k . . . .      <- length 6: what this session's context has so far
slot 1           k k k . . . . . . .
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnwise.models.attention import AttentionCall, blinders, masked_attention

BUCKET = 32
"""Attention reads up to a multiple of this many positions, so that shapes repeat."""

NARROW = 8
"""Rows of at most so many new tokens are laid out together, longer ones apart from them."""


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


@dataclass(slots=True)
class Stretch:
    """New tokens of one session: they follow `past` positions that its slot holds already."""

    slot: int
    past: int
    new: int


class RowsPlan:
    """New tokens of several sessions, by slot and packed: written to their slots, each seeing its own context.

    Inside attention a session is a row of T queries, those with fewer tokens padded:

        tokens  a a b c c c      rows  a a .     of all slots up to the highest in use, so that keys and values are
                                       b . .     a view of the cache; where few of them are in use, only of these,
                                       c c c     whose keys and values are then copied

    Reading the cache is most of the work, so what all sessions hold alike is read once:

        positions  0 .. shared       the prompt that they have in common: from the first session's slot, for all
                   shared .. span    each session's own
    """

    def __init__(self, cache: KVCache, stretches: Sequence[Stretch], shared: int = 0) -> None:
        self.cache = cache
        self.first, self.shared = stretches[0].slot, shared
        slots = torch.tensor([each.slot for each in stretches])  # [B]
        past, new = torch.tensor([each.past for each in stretches]), torch.tensor([each.new for each in stretches])
        self.width = int(new.max())
        self.span = min(bucketed(int((past + new).max())), cache.capacity)
        columns = torch.arange(self.width)
        inside = columns < new[:, None]  # [B, T]
        self.positions = (past[:, None] + columns)[inside]  # [N]
        self.token_slots = slots.repeat_interleave(new)  # [N]
        top = int(slots.max()) + 1
        few = 2 * len(slots) < top
        self.rows = len(slots) if few else top
        self.chosen = slots if few else slice(top)
        numbers = torch.arange(self.rows) if few else slots
        self.places = (numbers[:, None] * self.width + columns)[inside]  # [N] -> R*T
        self.full = len(self.places) == self.rows * self.width
        self.masks: dict[int | None, Tensor] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        keys, values = self.cache.layer(call)
        keys[self.token_slots, :, self.positions] = call.key
        values[self.token_slots, :, self.positions] = call.value
        query = self._in_rows(call.query).unflatten(0, (self.rows, self.width))  # [R, T, H, D]
        if self.width <= NARROW and call.softcap is None and query.dtype == torch.float32:
            out = self._attend_apart(call, query, keys, values)
        else:
            own = self._own(keys, 0), self._own(values, 0)
            out = masked_attention(call, query.transpose(1, 2), *own, self._mask(call.window)).transpose(1, 2)
        out = out.flatten(0, 1)
        return out if self.full else out.index_select(0, self.places)

    def _in_rows(self, tokens: Tensor) -> Tensor:
        """[N, ...] -> [R*T, ...], 0 where a row has no token"""
        if self.full:
            return tokens
        return tokens.new_zeros(self.rows * self.width, *tokens.shape[1:]).index_copy_(0, self.places, tokens)

    def _own(self, tensor: Tensor, start: int) -> Tensor:
        """The rows' own keys or values from a position on. [R, KV, span - start, D]"""
        return tensor[self.chosen, :, start : self.span]

    def _attend_apart(self, call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Scores against what is shared and what is each row's own, one softmax over both. [R, T, H, D]

        The T queries of the G heads that read the same keys go together, so that these, too, are read once.
        """
        rows, width, heads, size = query.shape
        kv, shared = keys.shape[1], self.shared
        query = (query * call.scale).view(rows, width, kv, -1, size).transpose(1, 2).reshape(rows, kv, -1, size)
        scores = query @ self._own(keys, shared).transpose(2, 3)  # [R, KV, T*G, span]
        if shared:
            scores = torch.cat([_for_all(query, keys[self.first, :, :shared].transpose(1, 2)), scores], dim=-1)
        by_query = scores.view(rows, kv, width, -1, self.span).add_(self._mask(call.window)[:, :, :, None])
        weights = by_query.softmax(dim=-1).view_as(scores)
        out = weights[..., shared:] @ self._own(values, shared)
        if shared:
            out += _for_all(weights[..., :shared], values[self.first, :, :shared])
        return out.view(rows, kv, width, -1, size).transpose(1, 2).reshape(rows, width, heads, size)

    def _mask(self, window: int | None) -> Tensor:
        """What is added to the scores. [R, 1, T, span]"""
        if window not in self.masks:
            positions = self._in_rows(self.positions).view(self.rows, self.width)
            self.masks[window] = blinders(positions[:, :, None], torch.arange(self.span), window)[:, None]
        return self.masks[window]


class MixedPlan:
    """Sessions with many new tokens and sessions with few: two kinds of rows in one forward.

    Everything but attention then runs once for both, which is what a small model's time goes to.
    """

    def __init__(self, parts: Sequence[RowsPlan]) -> None:
        self.parts = parts
        self.sizes = [len(part.positions) for part in parts]
        self.positions = torch.cat([part.positions for part in parts])  # [N]

    def attend(self, call: AttentionCall) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0].attend(call)
        columns = (each.split(self.sizes) for each in (call.query, call.key, call.value))
        calls = [replace(call, query=query, key=key, value=value) for query, key, value in zip(*columns, strict=True)]
        return torch.cat([part.attend(own) for part, own in zip(self.parts, calls, strict=True)])


def _for_all(left: Tensor, right: Tensor) -> Tensor:
    """[R, KV, G, X] @ [KV, X, Y], the same right side for all rows: one large product a head. [R, KV, G, Y]"""
    rows, kv, group, inner = left.shape
    product = left.transpose(0, 1).reshape(kv, rows * group, inner) @ right
    return product.view(kv, rows, group, -1).transpose(0, 1)
