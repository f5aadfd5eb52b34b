"""The learner's attention on a CPU: rows packed without padding; a row sees itself and the prefix that it continues.

rows        p p p p p | q q | x x x x x x | a a a | b b b | c c    a and b continue prefix p, c continues q, x is alone
a sees      p p p p p                       a a a                  a prefix that a group shares is computed once
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from turnwise.models.attention.interface import AttentionCall, causal_bias, masked_attention

MIN_LENGTH_RATIO = 0.7
"""Rows are padded together while the shorter one has at least this share of the longer one's length."""

UNREACHABLE = 1 << 40
"""Position beyond that of any query; marks padded keys."""


class PackedPlan:
    """Pads the N packed tokens to rows inside attention only; all other modules run on packed tokens.

    `parents[i]` is the row that row i continues, or -1. Rows that others continue come first. In layer `last`, only
    the tokens `read` attend: the output of the others is not used. `ahead` [N]: later tokens of its row that each token
    attends to; None: causal attention.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        parents: Sequence[int],
        device: torch.device,
        read: Tensor | None = None,
        last: int | None = None,
        ahead: Tensor | None = None,
    ) -> None:
        num_prefixes = max(parents, default=-1) + 1
        if any(parent >= 0 for parent in parents[:num_prefixes]):
            raise ValueError("rows that others continue must come first and continue no other row")
        self.last, self.read = last, None if read is None or last is None else read.unique()
        self.prefixes = PaddedRows(lengths[:num_prefixes], device)
        done = self.prefixes.tokens
        self.prefix_ahead = _pad_ahead(ahead, slice(done), self.prefixes)
        self.blocks: list[_RowBlock] = []
        self.reading_blocks: list[_RowBlock] = []
        """The blocks restricted to the tokens `read`, for layer `last`."""
        for start, end in _blocks_of_similar_length(lengths, parents, num_prefixes):
            block = _RowBlock(self.prefixes, lengths[start:end], parents[start:end], done, device, ahead)
            self.blocks.append(block)
            if self.read is not None and (reading := block.restrict_queries(self.read)).queries.tokens:
                self.reading_blocks.append(reading)
            done += block.rows.tokens

    def attend(self, call: AttentionCall) -> Tensor:
        done, prefix = self.prefixes.tokens, None
        if done:
            prefix = [self.prefixes.unpack(tensor[:done]) for tensor in (call.key, call.value)]
        if self.read is not None and call.layer == self.last:
            outputs = [call.query[:0], *(block.attend(call, prefix) for block in self.reading_blocks)]
            return torch.zeros_like(call.query).index_copy(0, self.read, torch.cat(outputs))
        outputs = []
        if prefix is not None:
            query = self.prefixes.unpack(call.query[:done])
            attended = causal_attention(call, query, prefix[0], prefix[1], self.prefix_ahead)
            outputs.append(self.prefixes.pack(attended))
        return torch.cat([*outputs, *(block.attend(call, prefix) for block in self.blocks)])


class _RowBlock:
    """Rows of similar length, either all with a prefix or all without. `start`: index of their first packed token."""

    def __init__(
        self,
        prefixes: "PaddedRows",
        lengths: Sequence[int],
        parents: Sequence[int],
        start: int,
        device: torch.device,
        ahead: Tensor | None,
    ) -> None:
        self.prefixes, self.rows = prefixes, PaddedRows(lengths, device)
        self.parents = torch.tensor(parents, device=device) if parents[0] >= 0 else None
        self.start = start
        self.read: Tensor | None = None
        """Packed tokens that attend; None: all tokens of the rows."""
        self.queries = self.rows
        self.columns = self.rows.columns.expand(self.rows.count, -1)  # [B, Tq], positions of the queries in their rows
        self.ahead = _pad_ahead(ahead, slice(start, start + self.rows.tokens), self.rows)
        self.masks: dict[int | None, Tensor] = {}

    def restrict_queries(self, read: Tensor) -> "_RowBlock":
        """Return the block with only those of the packed tokens `read` as queries that belong to it."""
        ends = self.start + self.rows.size_tensor.cumsum(0)
        block = copy.copy(self)
        block.masks = {}
        block.read = read[(read >= self.start) & (read < self.start + self.rows.tokens)]
        row = torch.searchsorted(ends, block.read, right=True)
        block.queries = PaddedRows(row.bincount(minlength=self.rows.count).tolist(), read.device)
        local = block.read - (ends - self.rows.size_tensor)[row]
        block.columns = local[block.queries.gather].view(block.queries.count, block.queries.longest)
        block.ahead = None if self.ahead is None else self.ahead.gather(1, block.columns)
        return block

    def attend(self, call: AttentionCall, prefix: Sequence[Tensor] | None) -> Tensor:
        here = slice(self.start, self.start + self.rows.tokens)
        key, value = self.rows.unpack(call.key[here]), self.rows.unpack(call.value[here])
        if self.read is None:
            query = self.rows.unpack(call.query[here])
        else:
            query = self.queries.unpack(call.query.index_select(0, self.read))
        if self.parents is not None and prefix is not None:
            # Selecting whole rows keeps the gradient deterministic: a sum of few large slices in a fixed order.
            key = torch.cat([prefix[0].index_select(0, self.parents), key], dim=2)
            value = torch.cat([prefix[1].index_select(0, self.parents), value], dim=2)
        elif self.read is None and self.ahead is None:
            return self.rows.pack(causal_attention(call, query, key, value))
        return self.queries.pack(masked_attention(call, query, key, value, self._mask(call.window)))

    def _mask(self, window: int | None) -> Tensor:
        """Return the mask over the prefix's keys followed by the row's own keys. [B, 1, Tq, P + T]"""
        if window not in self.masks:
            keys, queries = self.rows.columns.expand(self.rows.count, -1), self.columns
            if self.parents is not None:
                prefix_sizes = self.prefixes.size_tensor[self.parents][:, None]  # [B, 1]
                prefix_keys = self.prefixes.columns.expand(self.rows.count, -1)  # [B, P]
                prefix_keys = torch.where(prefix_keys < prefix_sizes, prefix_keys, UNREACHABLE)
                keys = torch.cat([prefix_keys, prefix_sizes + keys], dim=1)
                queries = prefix_sizes + queries
            ahead = None if self.ahead is None else self.ahead[:, :, None]
            self.masks[window] = causal_bias(queries[:, :, None], keys[:, None, :], window, ahead)[:, None]
        return self.masks[window]


class PaddedRows:
    """Converts between packed tokens and rows [B, T] padded on the right.

    Attention is causal and padding comes last, so no token attends to padding.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.count, self.tokens, self.longest = len(sizes), sum(sizes), max(sizes, default=0)
        self.even = len(set(sizes)) <= 1
        self.columns = torch.arange(self.longest, device=device)
        self.size_tensor = torch.tensor(sizes, device=device, dtype=torch.long)
        starts = self.size_tensor.cumsum(0) - self.size_tensor
        inside = self.columns < self.size_tensor[:, None]
        self.gather = torch.where(inside, starts[:, None] + self.columns, 0).flatten()  # [B*T] -> N
        self.scatter = inside.flatten().nonzero().squeeze(1)  # [N] -> B*T

    def unpack(self, packed: Tensor) -> Tensor:
        """[N, H, D] -> [B, H, T, D]"""
        rows = packed if self.even else _Unpack.apply(packed, self.gather, self.scatter)
        return rows.view(self.count, self.longest, *packed.shape[1:]).transpose(1, 2)

    def pack(self, rows: Tensor) -> Tensor:
        """[B, H, T, D] -> [N, H, D]"""
        flat = rows.transpose(1, 2).flatten(0, 1)
        return flat if self.even else _Pack.apply(flat, self.scatter)


class _Unpack(torch.autograd.Function):
    """Packed tokens -> padded rows. The output of padding is unused, so its gradient is 0 and backward is a selection.

    torch's own backward of `index_select` would add up the gradients of equal indices one by one.
    """

    @staticmethod
    def forward(ctx: Any, packed: Tensor, gather: Tensor, scatter: Tensor) -> Tensor:
        ctx.save_for_backward(scatter)
        return packed.index_select(0, gather)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (scatter,) = ctx.saved_tensors
        return grads[0].index_select(0, scatter), None, None


class _Pack(torch.autograd.Function):
    """Padded rows -> packed tokens. The gradient of padding is 0."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, scatter: Tensor) -> Tensor:
        ctx.save_for_backward(scatter)
        ctx.size = flat.shape[0]
        return flat.index_select(0, scatter)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (scatter,) = ctx.saved_tensors
        flat = grads[0].new_zeros(ctx.size, *grads[0].shape[1:])
        flat[scatter] = grads[0]
        return flat, None


def _pad_ahead(ahead: Tensor | None, tokens: slice, rows: PaddedRows) -> Tensor | None:
    """Return `ahead` of these packed tokens as rows [B, T]; None if it is 0 for all of them."""
    if ahead is None or not bool(ahead[tokens].any()):
        return None
    return ahead[tokens][rows.gather].view(rows.count, rows.longest)


def causal_attention(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor, ahead: Tensor | None = None
) -> Tensor:
    """Return attention within each row, causal but for later tokens that `ahead` [B, T] admits. [B, H, T, D]"""
    longest = query.shape[2]
    if ahead is None and call.softcap is None and (call.window is None or call.window >= longest):
        gqa = key.shape[1] != query.shape[1]
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=call.scale, enable_gqa=gqa)
    columns = torch.arange(longest, device=query.device)
    bias = causal_bias(columns[:, None], columns, call.window, None if ahead is None else ahead[:, None, :, None])
    return masked_attention(call, query, key, value, bias.expand(1, 1, -1, -1) if ahead is None else bias)


def _blocks_of_similar_length(lengths: Sequence[int], parents: Sequence[int], start: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of runs of rows of similar length that all have a prefix or all have none."""
    for end in range(start + 1, len(lengths) + 1):
        if (
            end == len(lengths)
            or (parents[end] < 0) != (parents[start] < 0)
            or min(lengths[start], lengths[end]) < MIN_LENGTH_RATIO * max(lengths[start], lengths[end])
        ):
            yield start, end
            start = end
