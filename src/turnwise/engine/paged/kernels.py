"""Triton kernels of the engine and their launchers. `reference.py` does the same in torch; the tests compare the two.

Imported only where there is a GPU, and by the tests under Triton's interpreter.

pages of a layer   [pages, KV, PAGE, D] for keys, the same for values
tables             [slots, pages per slot] int32: pages of a session's positions 0..PAGE-1, PAGE..2*PAGE-1, ...
"""

import triton
import triton.language as tl
from torch import Tensor

from turnwise.engine.paged.state import SampledTokens, SessionState
from turnwise.models.attention.interface import AttentionCall
from turnwise.models.memory.plan import PAGE


@triton.jit
def write_kernel(
    key, value, keys, values, tables, token_slots, positions,
    key_token, key_head, value_token, value_head, table_width,
    HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One program per token: write its keys and values of all heads to its page."""
    token = tl.program_id(0)
    slot = tl.load(token_slots + token).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    page = tl.load(tables + slot * table_width + position // PAGE).to(tl.int64)
    head = tl.arange(0, HEADS_PADDED)[:, None]
    column = tl.arange(0, SIZE_PADDED)[None, :]
    inside = (head < HEADS) & (column < SIZE)
    target = (page * HEADS + head) * PAGE * SIZE + (position % PAGE) * SIZE + column
    new_key = tl.load(key + token.to(tl.int64) * key_token + head * key_head + column, mask=inside, other=0.0)
    new_value = tl.load(value + token.to(tl.int64) * value_token + head * value_head + column, mask=inside, other=0.0)
    tl.store(keys + target, new_key, mask=inside)
    tl.store(values + target, new_value, mask=inside)


@triton.jit
def attend_kernel(
    query, keys, values, out, tables, starts, slots, pasts, counts, ahead,
    query_token, query_head, out_token, out_head, table_width, scale, softcap,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, AHEAD: tl.constexpr,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, ROWS: tl.constexpr,
    HEADS: tl.constexpr, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One program per block of tokens of one session and key-value head, with all query heads of the group.

    rows of the score matrix    token 0 head 0, token 0 head 1, ..., token 1 head 0, ...    ROWS = tokens * GROUP_PADDED
    """
    block, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts + block).to(tl.int64)
    slot = tl.load(slots + block).to(tl.int64)
    past = tl.load(pasts + block)
    count = tl.load(counts + block)
    row = tl.arange(0, ROWS)
    token, member = row // GROUP_PADDED, row % GROUP_PADDED
    column = tl.arange(0, SIZE_PADDED)
    real = (member < GROUP) & (token < count)
    within = real[:, None] & (column < SIZE)[None, :]
    offset = (start + token) * query_token + (head * GROUP + member) * query_head
    q = tl.load(query + offset[:, None] + column[None, :], mask=within, other=0.0)
    own = past + token
    seen = own  # last position that a row sees
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sum_ = tl.zeros([ROWS, SIZE_PADDED], tl.float32)
    page_offset = tl.arange(0, PAGE)
    end = tl.where(count > 0, past + count, 0)
    if AHEAD:
        seen = own + tl.load(ahead + start + token, mask=real, other=0).to(tl.int32)
        end = tl.max(tl.where(real, seen + 1, 0), axis=0)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(past - WINDOW + 1, 0) // PAGE
    for number in range(first, tl.cdiv(end, PAGE)):
        page = tl.load(tables + slot * table_width + number).to(tl.int64)
        tile = (page * HEADS + head) * PAGE * SIZE + page_offset[:, None] * SIZE + column[None, :]
        position = number * PAGE + page_offset
        held = (position < end)[:, None] & (column < SIZE)[None, :]
        k = tl.load(keys + tile, mask=held, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP:
            scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
        visible = position[None, :] <= seen[:, None]
        if WINDOW > 0:
            visible = visible & (position[None, :] > own[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(best - base)
        total = total * shrink + tl.sum(weights, axis=1)
        v = tl.load(values + tile, mask=held, other=0.0)
        sum_ = sum_ * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = higher
    result = sum_ / tl.where(total > 0, total, 1.0)[:, None]
    target = (start + token) * out_token + (head * GROUP + member) * out_head
    tl.store(out + target[:, None] + column[None, :], result.to(out.dtype.element_ty), mask=within)


@triton.jit
def _xor_shift(state, bits: tl.constexpr):
    return state ^ (state >> bits)


@triton.jit
def _uniform(address, counter):
    """SplitMix64, the same as `engine.cpu.sampling.uniforms`."""
    state = address.to(tl.uint64) + (counter.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    state = _xor_shift(state, 30) * 0xBF58476D1CE4E5B9
    state = _xor_shift(state, 27) * 0x94D049BB133111EB
    state = _xor_shift(state, 31)
    return ((state >> 41).to(tl.float32) + 0.5) / 8388608.0


@triton.jit
def sample_kernel(
    logits, rows, last, lengths, counters, addresses, temperatures, left, stop_ids, cursor, out_tokens, out_logprobs,
    logits_row, out_width,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, STOPS: tl.constexpr, STOPS_PADDED: tl.constexpr,
):  # fmt: skip
    """One program per row: sample its token and update its session. A session with nothing `left` does not change.

    Temperature 0 takes the most likely token, with its log-probability at temperature 1.
    """
    row = tl.program_id(0)
    slot = tl.load(rows + row)
    target = tl.load(cursor) * out_width + row
    if tl.load(left + slot) <= 0:
        tl.store(out_tokens + target, -1)
    else:
        temperature = tl.load(temperatures + slot)
        greedy = temperature == 0.0
        inverse = 1.0 / tl.where(greedy, 1.0, temperature)
        here = logits + row.to(tl.int64) * logits_row
        column = tl.arange(0, BLOCK)
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, VOCABULARY, BLOCK):
            inside = start + column < VOCABULARY
            x = tl.load(here + start + column, mask=inside, other=float("-inf")).to(tl.float32) * inverse
            higher = tl.maximum(best, x)
            base = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(best - base) + tl.exp(x - base)
            best = higher
        top = tl.max(best, axis=0)
        mass = tl.sum(total * tl.exp(best - top), axis=0)
        threshold = _uniform(tl.load(addresses + slot), tl.load(counters + slot)) * mass
        before = 0.0
        token = -1
        likeliest = 0
        likeliest_x = float("-inf")
        last_possible = 0
        for start in range(0, VOCABULARY, BLOCK):
            inside = start + column < VOCABULARY
            x = tl.load(here + start + column, mask=inside, other=float("-inf")).to(tl.float32) * inverse
            weights = tl.exp(x - top)
            upto = before + tl.cumsum(weights, axis=0)
            crossed = (upto > threshold) & (weights > 0.0)
            candidate = tl.min(tl.where(crossed, start + column, VOCABULARY), axis=0)
            token = tl.where((token < 0) & (candidate < VOCABULARY), candidate, token)
            last_possible = tl.maximum(last_possible, tl.max(tl.where(weights > 0.0, start + column, 0), axis=0))
            highest = tl.max(x, axis=0)
            index = tl.min(tl.where(x == highest, start + column, VOCABULARY), axis=0)
            likeliest = tl.where(highest > likeliest_x, index, likeliest)
            likeliest_x = tl.maximum(likeliest_x, highest)
            before += tl.sum(weights, axis=0)
        # Rounding can leave the sum slightly below the mass: take the last token with a probability above 0.
        token = tl.where(token < 0, last_possible, token)
        token = tl.where(greedy, likeliest, token)
        logprob = tl.load(here + token).to(tl.float32) * inverse - top - tl.log(mass)
        tl.store(out_tokens + target, token)
        tl.store(out_logprobs + target, logprob)
        tl.store(last + slot, token.to(tl.int64))
        tl.store(lengths + slot, tl.load(lengths + slot) + 1)
        tl.store(counters + slot, tl.load(counters + slot) + 1)
        stop = tl.arange(0, STOPS_PADDED)
        ends = tl.load(stop_ids + stop, mask=stop < STOPS, other=-1) == token
        over = tl.max(ends.to(tl.int32), axis=0) > 0
        tl.store(left + slot, tl.where(over, 0, tl.load(left + slot) - 1))


def padded(size: int, least: int = 1) -> int:
    return max(least, triton.next_power_of_2(size))


def write(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, at: Tensor) -> None:
    heads, size = key.shape[1:]
    write_kernel[(key.shape[0],)](
        key, value, keys, values, tables, slots, at,
        *key.stride()[:2], *value.stride()[:2], tables.stride(0),
        HEADS=heads, HEADS_PADDED=padded(heads), SIZE=size, SIZE_PADDED=padded(size), PAGE=PAGE, num_warps=2,
    )  # fmt: skip


def attend(
    call: AttentionCall,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    blocks: Tensor,
    out: Tensor,
    tokens: int,
    ahead: Tensor | None = None,
) -> Tensor:
    """`tokens`: maximum per block."""
    heads, size = call.query.shape[1:]
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    rows = padded(tokens * padded(group), 16)
    attend_kernel[(blocks.shape[1], kv_heads)](
        call.query, keys, values, out, tables, *blocks.unbind(), blocks if ahead is None else ahead,
        *call.query.stride()[:2], *out.stride()[:2], tables.stride(0), call.scale, call.softcap or 0.0,
        WINDOW=call.window or 0, SOFTCAP=call.softcap is not None, AHEAD=ahead is not None,
        GROUP=group, GROUP_PADDED=padded(group), ROWS=rows,
        HEADS=kv_heads, SIZE=size, SIZE_PADDED=padded(size, 16), PAGE=PAGE, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def sample_step(logits: Tensor, rows: Tensor, sessions: SessionState, stop_ids: Tensor, sampled: SampledTokens) -> None:
    stops = len(stop_ids)
    sample_kernel[(len(rows),)](
        logits, rows, sessions.last, sessions.lengths, sessions.counters, sessions.addresses,
        sessions.temperatures, sessions.left,
        stop_ids, sampled.cursor, sampled.tokens, sampled.logprobs, logits.stride(0), sampled.tokens.stride(0),
        VOCABULARY=logits.shape[1], BLOCK=min(4096, padded(logits.shape[1], 16)),
        STOPS=stops, STOPS_PADDED=padded(stops), num_warps=8,
    )  # fmt: skip
