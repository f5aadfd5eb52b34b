"""Attention over the cache in torch: for any device, type and shape; attention.c is tested against it."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from turnwise.engine.native.cache import KVCache, Stretch, bucketed
from turnwise.models.attention import AttentionCall, blinders, masked_attention

NARROW = 8
"""Rows of at most so many new tokens are laid out together, longer ones apart from them."""


def attend_in_rows(cache: KVCache, stretches: Sequence[Stretch], call: AttentionCall) -> Tensor:
    """Writes the new tokens to their slots; each sees its session's context up to itself. [N, H, D]"""
    parts, start = list[Tensor](), 0
    for _, alike in groupby(stretches, key=lambda each: each.new <= NARROW):
        rows = list(alike)
        count = sum(each.new for each in rows)
        here = slice(start, start + count)
        parts.append(_attend(cache, rows, call, call.query[here], call.key[here], call.value[here]))
        start += count
    return torch.cat(parts)


def _attend(
    cache: KVCache, stretches: Sequence[Stretch], call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
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
    span = min(bucketed(int((past + new).max())), cache.capacity)
    token_slots = slots.repeat_interleave(new)  # [N]
    keys[token_slots, :, :, positions[inside]] = key
    values[token_slots, :, positions[inside]] = value
    queries = query.new_zeros(*inside.shape, *query.shape[1:])  # [B, T, H, D]
    queries[inside] = query
    mask = blinders(positions[:, :, None], torch.arange(span, device=key.device), call.window)[:, None]
    own = keys[slots, :, :, :span].transpose(2, 3).contiguous(), values[slots, :, :span]
    return masked_attention(call, queries.transpose(1, 2), *own, mask).transpose(1, 2)[inside]
