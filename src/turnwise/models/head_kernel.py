"""Triton kernel for `head.logprob_statistics`: one pass over the logits, where torch.compile needs three."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def logprob_kernel(
    logits, targets, temperatures, logprobs, entropies, logsumexps, row_stride,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row. Sums are relative to the largest logit so far and are rescaled when it grows."""
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * row_stride
    inverse = 1.0 / tl.load(temperatures + row)
    best = -1e38
    total = tl.zeros([BLOCK], tl.float32)
    expected = tl.zeros([BLOCK], tl.float32)
    for first in range(0, VOCABULARY, BLOCK):
        column = first + tl.arange(0, BLOCK)
        scaled = tl.load(start + column, mask=column < VOCABULARY, other=float("-inf")) * inverse
        larger = tl.maximum(best, tl.max(scaled, axis=0))
        shrink = tl.exp(best - larger)
        share = tl.exp(scaled - larger)
        below = tl.where(column < VOCABULARY, scaled - larger, 0.0)
        expected = (expected + total * (best - larger)) * shrink + share * below
        total = total * shrink + share
        best = larger
    whole = tl.sum(total, axis=0)
    logsum = best + tl.log(whole)
    chosen = tl.load(start + tl.load(targets + row)) * inverse
    tl.store(logprobs + row, chosen - logsum)
    tl.store(entropies + row, tl.log(whole) - tl.sum(expected, axis=0) / whole)
    tl.store(logsumexps + row, logsum)


def logprob_statistics(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = [torch.empty(len(logits), device=logits.device) for _ in range(3)]
    if len(logits):
        block = min(4096, triton.next_power_of_2(logits.shape[1]))
        logprob_kernel[(len(logits),)](
            logits, targets, temperatures, *out, logits.stride(0),
            VOCABULARY=logits.shape[1], BLOCK=block, num_warps=8,
        )  # fmt: skip
    return out[0], out[1], out[2]
