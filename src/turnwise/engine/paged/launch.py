"""Starts the Triton kernels. Imported where there is a GPU, and by the tests under Triton's interpreter."""

import torch
import triton
from torch import Tensor

from turnwise.engine.paged.kernels import attend_kernel, sample_kernel, write_kernel
from turnwise.engine.paged.sessions import PAGE, Drawn, Sessions
from turnwise.models.attention import AttentionCall


def padded(size: int, least: int = 1) -> int:
    return max(least, triton.next_power_of_2(size))


def write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, at: Tensor) -> None:
    heads, size = key.shape[1:]
    write_kernel[(key.shape[0],)](
        key, value, keys, values, tables, slots, at,
        *key.stride()[:2], *value.stride()[:2], tables.stride(0),
        HEADS=heads, HEADS_PADDED=padded(heads), SIZE=size, SIZE_PADDED=padded(size), PAGE=PAGE, num_warps=2,
    )  # fmt: skip


def tokens_per_block(heads: int, kv_heads: int) -> int:
    """Of blocks of many tokens: about 64 rows of the score matrix."""
    return max(1, 64 // padded(heads // kv_heads))


def attend(
    call: AttentionCall, keys: Tensor, values: Tensor, tables: Tensor, blocks: Tensor, out: Tensor, tokens: int
) -> Tensor:
    """`tokens`: of a block, at most."""
    heads, size = call.query.shape[1:]
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    rows = padded(tokens * padded(group), 16)
    attend_kernel[(blocks.shape[1], kv_heads)](
        call.query, keys, values, out, tables, *blocks.unbind(),
        *call.query.stride()[:2], *out.stride()[:2], tables.stride(0), call.scale, call.softcap or 0.0,
        WINDOW=call.window or 0, SOFTCAP=call.softcap is not None,
        GROUP=group, GROUP_PADDED=padded(group), ROWS=rows,
        HEADS=kv_heads, SIZE=size, SIZE_PADDED=padded(size, 16), PAGE=PAGE, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def sample_step(logits: Tensor, rows: Tensor, sessions: Sessions, stop_ids: Tensor, drawn: Drawn) -> None:
    each = sessions
    stops = len(stop_ids)
    sample_kernel[(len(rows),)](
        logits, rows, each.last, each.lengths, each.counters, each.addresses, each.temperatures, each.left,
        stop_ids, drawn.cursor, drawn.tokens, drawn.logprobs, logits.stride(0), drawn.tokens.stride(0),
        VOCABULARY=logits.shape[1], BLOCK=min(4096, padded(logits.shape[1], 16)),
        STOPS=stops, STOPS_PADDED=padded(stops), num_warps=8,
    )  # fmt: skip


def check() -> str:
    """The version of Triton, which imports only where its parts are whole."""
    return f"triton {triton.__version__}, torch {torch.__version__}"
