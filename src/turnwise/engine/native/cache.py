"""A slot of keys and values for every session, kept across turns, and the two plans that read and write it.

keys of a layer  [slots, KV, capacity, D]
slot 0           k k k k k k . . . .      <- length 6: what this session's context has so far
slot 1           k k k . . . . . . .
"""

from collections.abc import Sequence
from dataclasses import replace

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
        self.chosen: slice | Tensor = slice(len(slots)) if list(slots) == list(range(len(slots))) else self.slots
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
            keys[self.chosen, :, : self.span],
            values[self.chosen, :, : self.span],
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

    Reading the cache is most of the work, so what all of them hold alike is read once:

        positions  0 .. shared       the prompt that they have in common: from the first session's slot, for all
                   shared .. span    each session's own

    The latter is taken from all slots up to the highest in use, as a view: gathering the rows in use would copy the
    cache. Where few of them are in use, the copy is the smaller cost.
    """

    def __init__(self, cache: KVCache, slots: Tensor, positions: Tensor, shared: int = 0) -> None:
        self.cache = cache
        self.slots = slots  # [B]
        self.positions = positions  # [B]
        self.first, self.shared = int(slots[0]), shared
        self.span = min(bucketed(int(positions.max()) + 1), cache.capacity)
        top = int(slots.max()) + 1
        self.gathers = 2 * len(slots) < top
        self.dense = len(slots) == top
        self.row_positions = positions
        if not self.gathers and not self.dense:
            self.row_positions = positions.new_zeros(top).index_copy_(0, slots, positions)
        self.masks: dict[int | None, Tensor] = {}
        self.biases: dict[int | None, Tensor] = {}

    def attend(self, call: AttentionCall) -> Tensor:
        keys, values = self.cache.layer(call)
        keys[self.slots, :, self.positions] = call.key
        values[self.slots, :, self.positions] = call.value
        query, rows = call.query, len(self.row_positions)
        if not self.gathers and not self.dense:
            query = query.new_zeros(rows, *query.shape[1:]).index_copy_(0, self.slots, query)
        if call.softcap is None and query.dtype == torch.float32:
            out = self._attend_apart(call, query, keys, values)
        else:
            own = self._own(keys, 0), self._own(values, 0)
            out = masked_attention(call, query[:, :, None], *own, self._mask(call.window))[:, :, 0]
        return out if self.gathers or self.dense else out[self.slots]

    def _own(self, tensor: Tensor, start: int) -> Tensor:
        """The rows' own keys or values from a position on. [R, KV, span - start, D]"""
        chosen = self.slots if self.gathers else slice(len(self.row_positions))
        return tensor[chosen, :, start : self.span]

    def _attend_apart(self, call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Scores against what is shared and what is each row's own, one softmax over both. [R, H, D]

        The G query heads that read the same keys go together, so that these, too, are read once.
        """
        rows, heads, size = query.shape
        kv, shared = keys.shape[1], self.shared
        query = (query * call.scale).view(rows, kv, heads // kv, size)  # [R, KV, G, D]
        scores = query @ self._own(keys, shared).transpose(2, 3)
        if shared:
            scores = torch.cat([_for_all(query, keys[self.first, :, :shared].transpose(1, 2)), scores], dim=-1)
        weights = scores.add_(self._bias(call.window)).softmax(dim=-1)  # [R, KV, G, span]
        out = weights[..., shared:] @ self._own(values, shared)
        if shared:
            out += _for_all(weights[..., :shared], values[self.first, :, :shared])
        return out.view(rows, heads, size)

    def _mask(self, window: int | None) -> Tensor:
        if window not in self.masks:
            seen = visible(self.row_positions[:, None], torch.arange(self.span), window)
            self.masks[window] = seen[:, None, None]  # [R, 1, 1, span]
        return self.masks[window]

    def _bias(self, window: int | None) -> Tensor:
        """What is added to the scores: 0 where a row sees, minus infinity elsewhere. [R, 1, 1, span]"""
        if window not in self.biases:
            seen = self._mask(window)
            self.biases[window] = torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
        return self.biases[window]


class MixedPlan:
    """New contexts first, then sessions that go on by one token: two kinds of attention in one forward.

    Everything but attention then runs once for both, which is what a small model's time goes to.
    """

    def __init__(self, prefill: PrefillPlan | None, decode: DecodePlan | None) -> None:
        self.parts: list[PrefillPlan | DecodePlan] = [part for part in (prefill, decode) if part is not None]
        self.sizes = [len(part.positions) for part in self.parts]
        self.positions = torch.cat([part.positions for part in self.parts])  # [N]
        lasts = [] if prefill is None else [prefill.last]
        if decode is not None:
            lasts.append(torch.arange(len(self.positions) - len(decode.positions), len(self.positions)))
        self.last = torch.cat(lasts)  # [B] -> N: whose logits are sampled from

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
