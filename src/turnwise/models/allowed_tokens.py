"""Logits under a constraint: tokens that are not allowed get NEVER, as those that are never sampled."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from turnwise.core.samples import AllowedTokens

NEVER = -1e9
"""Logit of tokens that are never sampled. Finite, so that entropies and gradients stay finite."""


def stack_sets(sets: Sequence[bytes]) -> Tensor:
    """Return packed sets of tokens (`render/grammar.py`) as rows. [R, W] uint8"""
    return torch.from_numpy(np.frombuffer(b"".join(sets), np.uint8).reshape(len(sets), -1).copy())


def unpack_sets(packed: Tensor, vocabulary: int) -> Tensor:
    """Return which tokens are allowed. packed: [R, W] uint8 -> [R, V] bool. Tokens beyond the sets are not."""
    bits = 1 << torch.arange(8, device=packed.device)
    allowed = (packed[..., None] & bits.to(torch.uint8)).ne(0).flatten(1)
    missing = vocabulary - allowed.shape[1]
    return torch.nn.functional.pad(allowed, (0, missing)) if missing > 0 else allowed[:, :vocabulary]


def find_forbidden(allowed: AllowedTokens, here: slice, vocabulary: int) -> Tensor:
    """Return which tokens the constraints of these rows rule out. [R, V] bool

    Rows without a constraint rule out nothing, not even the tokens that a model has beyond its tokenizer's.
    """
    rows = allowed.rows[here]
    return (rows >= 0)[:, None] & ~unpack_sets(allowed.sets[rows], vocabulary)


def mask_logits_(logits: Tensor, packed: Tensor) -> Tensor:
    """Give tokens that are not allowed the logit NEVER, in place. logits: [R, V]"""
    return logits.masked_fill_(~unpack_sets(packed, logits.shape[1]), NEVER)
