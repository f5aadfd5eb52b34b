"""The Triton kernels' functions in torch: their reference, the CPU path, and top-p and top-k on every device."""

import torch
from torch import Tensor

from turnwise.engine.cpu.sampling import SamplingTensors, sample, uniforms
from turnwise.engine.paged.state import SampledTokens, SessionState
from turnwise.models.attention.interface import AttentionCall, causal_bias, masked_attention
from turnwise.models.memory.plan import PAGE


def write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, at: Tensor) -> None:
    """Write new keys and values [N, KV, D] to their pages."""
    pages = tables[slots.long(), at.long() // PAGE].long()
    keys[pages, :, at.long() % PAGE] = key
    values[pages, :, at.long() % PAGE] = value


def attend(
    call: AttentionCall,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    blocks: Tensor,
    out: Tensor,
    ahead: Tensor | None = None,
) -> Tensor:
    """Attend in blocks of neighbouring tokens. blocks [4, NB]: first token, slot, its position, number of tokens."""
    for start, slot, past, count in blocks.T.tolist():
        if count == 0:
            continue
        tokens = slice(start, start + count)
        queries = torch.arange(past, past + count, device=out.device)
        seen = None if ahead is None else ahead[tokens]
        end = past + count if seen is None else int((queries + seen).max()) + 1
        pages = tables[slot, : -(-end // PAGE)].long()
        key, value = (tensor[pages].transpose(0, 1).flatten(1, 2)[None, :, :end] for tensor in (keys, values))
        columns = torch.arange(end, device=out.device)
        mask = causal_bias(queries[:, None], columns, call.window, None if seen is None else seen[:, None])[None, None]
        out[tokens] = masked_attention(call, call.query[tokens].transpose(0, 1)[None], key, value, mask)[0].transpose(
            0, 1
        )
    return out


def sample_step(logits: Tensor, rows: Tensor, sessions: SessionState, stop_ids: Tensor, sampled: SampledTokens) -> None:
    """Sample a token for each row that has some left, and update its session, without synchronizing with the host."""
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
    sampled.tokens[:, :count].index_copy_(0, sampled.cursor, torch.where(alive, tokens, -1).int()[None])
    sampled.logprobs[:, :count].index_copy_(0, sampled.cursor, torch.where(alive, logprobs, 0.0)[None])
    count_new = alive.long()
    ended = (tokens[:, None] == stop_ids).any(dim=1)
    left = torch.where(ended, 0, sessions.left[slots] - 1).int()
    sessions.last[slots] = torch.where(alive, tokens, sessions.last[slots])
    sessions.lengths[slots] += count_new.int()
    sessions.counters[slots] += count_new
    sessions.left[slots] = torch.where(alive, left, sessions.left[slots])
