"""State of all sessions on the device: static tensors that captured graphs read and write."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """One entry per slot, and a last one for padding rows: it has no tokens left to sample, and owns page 0."""

    last: Tensor  # [S] int64, the token that enters the cache next
    lengths: Tensor  # [S] int32, positions in the cache
    counters: Tensor  # [S] int64, tokens sampled so far in the episode
    addresses: Tensor  # [S] int64, addresses of the random numbers
    temperatures: Tensor  # [S]
    top_p: Tensor  # [S]
    top_k: Tensor  # [S] int64
    left: Tensor  # [S] int32, tokens that it may still sample; 0: the turn is over
    tables: Tensor  # [S, W] int32, the pages of its positions
    shifts: Tensor  # [S] int64, rotary position minus position, in models that place images in a grid

    @classmethod
    def empty(cls, slots: int, width: int, device: torch.device) -> "SessionState":
        def full(value: float, dtype: torch.dtype, *more: int) -> Tensor:
            return torch.full((slots + 1, *more), value, dtype=dtype, device=device)

        return cls(
            last=full(0, torch.int64),
            lengths=full(0, torch.int32),
            counters=full(0, torch.int64),
            addresses=full(0, torch.int64),
            temperatures=full(1, torch.float32),
            top_p=full(1, torch.float32),
            top_k=full(0, torch.int64),
            left=full(0, torch.int32),
            tables=full(0, torch.int32, width),
            shifts=full(0, torch.int64),
        )

    @property
    def padding_slot(self) -> int:
        return self.last.shape[0] - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """Output of decoding for the host: a row of tokens per step since the cursor was 0; -1: no token."""

    cursor: Tensor  # [1] int64
    tokens: Tensor  # [steps, rows] int32
    logprobs: Tensor  # [steps, rows]

    @classmethod
    def empty(cls, steps: int, rows: int, device: torch.device) -> "SampledTokens":
        return cls(
            cursor=torch.zeros(1, dtype=torch.int64, device=device),
            tokens=torch.full((steps, rows), -1, dtype=torch.int32, device=device),
            logprobs=torch.zeros(steps, rows, device=device),
        )
