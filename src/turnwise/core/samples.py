"""Training data: samples and packed batches."""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedTokens:
    """Tokens that constraints allowed where each of M tokens was sampled. Equal sets are stored once."""

    sets: Tensor  # [U, W] uint8, packed: token i is bit i % 8 of byte i // 8
    rows: Tensor  # [M] index into the sets; -1 where there was no constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One segment of a trajectory, as tensors of equal length T.

    ids               s s u u a a u u a a
    mask              0 0 0 0 1 1 0 0 1 1     1 for sampled tokens
    turn_ids          . . . . 0 0 . . 1 1     -1 where the mask is 0
    sampler_logprobs  . . . . p p . . p p     0 where the mask is 0
    """

    trajectory: int
    """Index of its trajectory in the step."""
    ids: Tensor  # [T] int64
    mask: Tensor  # [T] bool
    turn_ids: Tensor  # [T] int64
    sampler_logprobs: Tensor  # [T] float32
    temperatures: Tensor  # [T] float32, 1 where the mask is 0
    allowed: tuple[bytes, ...] | None = None
    """Packed set of the tokens that were allowed at each sampled token, empty: all. None: all at every token."""

    def __len__(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSample:
    """A sample with the inputs of the loss at every token; 0 where the mask is 0."""

    sample: Sample
    old_logprobs: Tensor  # [T] denominator of the ratio
    ref_logprobs: Tensor | None  # [T]
    old_values: Tensor | None  # [T]
    advantages: Tensor  # [T]
    returns: Tensor | None  # [T]
    weights: Tensor  # [T] aggregation weights: the loss is the sum over tokens of weight * token loss
    value_weights: Tensor | None  # [T] the same for the critic's loss
    group: int = 0
    """Index of its trajectory's group in the step."""
    index: int = 0
    """Index of the sample in the step."""
    selected: Tensor | None = None  # [T] bool, tokens selected by the loss, see `Loss.select`
    factors: Tensor | None = None  # [T] see `Loss.weigh`
    correction_scale: float = 1.0
    """Factor of the off-policy weights, the same on all tokens of an optimizer step."""

    def __len__(self) -> int:
        return len(self.sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B samples packed without padding: N tokens in rows, M of which were sampled.

        samples   p p p a a | p p p b b b         two members of a group with the same prompt
        rows      p p | p a a | p b b b           the shared prompt is a row that both continue; each keeps the prompt's
                                                  last token, whose logits predict its first sampled token

    Token `targets[j]` was sampled from the logits at `sources[j]`, the token before it.
    """

    ids: Tensor  # [N]
    positions: Tensor  # [N] position in the sample
    lengths: tuple[int, ...]  # of each row
    parents: tuple[int, ...]  # index of the row that each row continues, or -1
    order: tuple[int, ...]  # [B] sample index of each row that is not a shared prompt
    counts: tuple[int, ...]  # [B] number of sampled tokens, in that order
    sources: Tensor  # [M] index into [N]
    targets: Tensor  # [M] token ids
    temperatures: Tensor  # [M]
    ends: Tensor  # [B] index into [N] of the last token, in that order
    allowed: AllowedTokens | None = None
    """Log-probabilities and entropies are those among these tokens; None: among all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """A packed batch with the loss inputs of its M sampled tokens."""

    batch: Batch
    sampler_logprobs: Tensor  # [M]
    old_logprobs: Tensor  # [M]
    advantages: Tensor  # [M]
    weights: Tensor  # [M]
    turn_ids: Tensor  # [M]
    ref_logprobs: Tensor | None  # [M]
    old_values: Tensor | None  # [M]
    returns: Tensor | None  # [M]
    value_weights: Tensor | None  # [M]
    selected: Tensor | None = None  # [M]
    factors: Tensor | None = None  # [M]
    correction_scale: float = 1.0


_Packed = TypeVar("_Packed", Batch, TrainBatch, AllowedTokens)


def on_device(packed: _Packed, device: torch.device) -> _Packed:
    """Copy the tensors to the device without waiting for the transfer."""
    if device.type == "cpu":
        return packed
    moved: dict[str, Any] = {}
    for field in fields(packed):
        value = getattr(packed, field.name)
        if isinstance(value, Tensor):
            moved[field.name] = value.pin_memory().to(device, non_blocking=True)
        elif isinstance(value, Batch | AllowedTokens):
            moved[field.name] = on_device(cast(Any, value), device)
    return replace(packed, **moved)
