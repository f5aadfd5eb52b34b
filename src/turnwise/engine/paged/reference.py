"""What the Triton kernels do, in torch: their reference, what runs on the CPU, and top-p and top-k everywhere."""

import torch
from torch import Tensor

from turnwise.engine.native.sampling import SamplingTensors, sample, uniforms
from turnwise.engine.paged.state import PAGE, SampledTokens, SessionState
from turnwise.models.attention.interface import AttentionCall, causal_bias, masked_attention


def write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, at: Tensor) -> None:
    """New keys and values [N, KV, D] of tokens to their pages."""
    pages = tables[slots.long(), at.long() // PAGE].long()
    keys[pages, :, at.long() % PAGE] = key
    values[pages, :, at.long() % PAGE] = value


def attend(call: AttentionCall, keys: Tensor, values: Tensor, tables: Tensor, blocks: Tensor, out: Tensor) -> Tensor:
    """blocks [4, NB]: of each its first token, slot, position of that token, and how many tokens."""
    for start, slot, past, count in blocks.T.tolist():
        if count == 0:
            continue
        here, end = slice(start, start + count), past + count
        pages = tables[slot, : -(-end // PAGE)].long()
        key, value = (each[pages].transpose(0, 1).flatten(1, 2)[None, :, :end] for each in (keys, values))
        queries = torch.arange(past, end, device=out.device)
        mask = causal_bias(queries[:, None], torch.arange(end, device=out.device), call.window)[None, None]
        out[here] = masked_attention(call, call.query[here].transpose(0, 1)[None], key, value, mask)[0].transpose(0, 1)
    return out


def sample_step(logits: Tensor, rows: Tensor, sessions: SessionState, stop_ids: Tensor, drawn: SampledTokens) -> None:
    """A token for each row that has some left, and its session moves on. Nothing is read by the host."""
    slots = rows.long()
    alive = sessions.left[slots] > 0
    temperatures = sessions.temperatures[slots]
    settings = SamplingTensors(
        torch.where(temperatures == 0, 1.0, temperatures),
        temperatures == 0,
        sessions.top_p[slots],
        sessions.top_k[slots],
    )
    tokens, logprobs = sample(logits, settings, uniforms(sessions.addresses[slots], sessions.counters[slots]))
    count = len(rows)
    drawn.tokens[:, :count].index_copy_(0, drawn.cursor, torch.where(alive, tokens, -1).int()[None])
    drawn.logprobs[:, :count].index_copy_(0, drawn.cursor, torch.where(alive, logprobs, 0.0)[None])
    moved = alive.long()
    over = (tokens[:, None] == stop_ids).any(dim=1)
    left = torch.where(over, 0, sessions.left[slots] - 1).int()
    sessions.last[slots] = torch.where(alive, tokens, sessions.last[slots])
    sessions.lengths[slots] += moved.int()
    sessions.counters[slots] += moved
    sessions.left[slots] = torch.where(alive, left, sessions.left[slots])
