"""What is trained: samples, packed batches, and the learner's protocol."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from turnwise.core.protocols import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One segment of a trajectory as tensors of one length T.

    ids       s s u u a a u u a a
    mask      0 0 0 0 1 1 0 0 1 1     sampled 1, everything else 0
    turn_ids  . . . . 0 0 . . 1 1     -1 where the mask is 0
    logprobs  . . . . p p . . p p     the sampler's, 0 where the mask is 0
    """

    trajectory: int
    """Index of its trajectory in the step; "sequence" in an aggregation is the trajectory."""
    ids: Tensor  # [T] int64
    mask: Tensor  # [T] bool
    turn_ids: Tensor  # [T] int64
    logprobs: Tensor  # [T] float32
    temperatures: Tensor  # [T] float32, 1 where the mask is 0

    def __len__(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSample:
    """A sample with what the update needs at every token, still of one length T, 0 where the mask is 0."""

    sample: Sample
    old_logprobs: Tensor  # [T] what the ratio divides by
    ref_logprobs: Tensor | None  # [T]
    old_values: Tensor | None  # [T]
    advantages: Tensor  # [T]
    returns: Tensor | None  # [T]
    weights: Tensor  # [T] the whole aggregation: the loss is the sum over tokens of weight * token loss
    value_weights: Tensor | None  # [T] the same for the critic's loss
    selected: Tensor | None = None  # [T] bool, tokens that the loss treats apart
    correction_scale: float = 1.0
    """Factor of the off-policy weights, the same on all tokens of an optimizer step."""

    def __len__(self) -> int:
        return len(self.sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B samples packed without padding: N tokens in rows, and the M sampled ones among them.

        samples   p p p a a | p p p b b b         two members of a group, with one prompt
        rows      p p | p a a | p b b b           the prompt is a row of its own that both continue; its last token,
                                                  whose logits they learn from, stays with each of them

    Token `targets[j]` was sampled from the logits at `sources[j]`, the token before it.
    """

    ids: Tensor  # [N]
    positions: Tensor  # [N] in the sample
    lengths: tuple[int, ...]  # of the rows
    parents: tuple[int, ...]  # the row that each row continues, or -1
    order: tuple[int, ...]  # [B] which sample each row is, shared prompts left out
    counts: tuple[int, ...]  # [B] sampled tokens of each, in that order
    sources: Tensor  # [M] index into [N]
    targets: Tensor  # [M] token ids
    temperatures: Tensor  # [M]
    ends: Tensor  # [B] index into [N]: the last token of each, in that order


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """A packed batch with the M sampled tokens' numbers beside it."""

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
    correction_scale: float = 1.0


_Packed = TypeVar("_Packed", Batch, TrainBatch)


def on_device(packed: _Packed, device: torch.device) -> _Packed:
    """The same with its tensors there; the host does not wait for them to arrive."""
    if device.type == "cpu":
        return packed
    moved: dict[str, Any] = {}
    for field in fields(packed):
        value = getattr(packed, field.name)
        if isinstance(value, Tensor):
            moved[field.name] = value.pin_memory().to(device, non_blocking=True)
        elif isinstance(value, Batch):
            moved[field.name] = on_device(value, device)
    return replace(packed, **moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the learner says of the M sampled tokens of a batch; only what was asked for."""

    logprobs: Tensor | None = None  # [M]
    entropy: Tensor | None = None  # [M]
    values: Tensor | None = None  # [M]
    end_values: Tensor | None = None  # [B] after the last token of each sequence
    ref_logprobs: Tensor | None = None  # [M]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an algorithm asks of `Learner.score`."""

    logprobs: bool = False
    entropy: bool = False
    values: bool = False
    ref_logprobs: bool = False

    @property
    def anything(self) -> bool:
        return self.logprobs or self.entropy or self.values or self.ref_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings that the loop may change from one training step to the next."""

    step: int
    """Training steps done so far: the learning-rate schedule and the critic's warm-up depend on it."""
    kl_coef: float = 0.0
    """Coefficient of the KL term in the loss."""
    rate_scale: float = 1.0
    """Factor of the policy's learning rate; a rollback lowers it."""


LossTerm = Literal["task", "entropy", "kl"]
"""The terms of the policy loss: advantages, entropy bonus, KL penalty."""


class Learner(Protocol):
    """Holds the policy's weights and improves them. The loop, checkpoints, SFT and diagnostics know nothing else."""

    @property
    def max_grad_norm(self) -> float: ...
    @property
    def skipped_steps(self) -> int:
        """Optimizer steps skipped so far because a gradient was not finite."""
        ...

    def begin_step(self, settings: StepSettings) -> None: ...
    def score(self, batches: Sequence[Batch], needs: Needs) -> list[Scores]: ...
    def forward_backward(self, batch: TrainBatch, *, tokens: bool = False) -> dict[str, Tensor]:
        """Accumulate the batch's gradients. Returns the sum of each metric over its sampled tokens.

        With `tokens`, also `token_logprobs` and `token_entropies`, one value per sampled token [M].
        """
        ...

    def step(self, *, rate_scale: float = 1.0) -> dict[str, float]:
        """Take an optimizer step and clear the gradients. `rate_scale` multiplies both learning rates."""
        ...

    def gradient_norm(self, batches: Sequence[TrainBatch], term: LossTerm) -> float:
        """Return the norm of the policy's gradient of one loss term over the batches. Takes no step."""
        ...

    def weights(self) -> WeightSource: ...
    def save_model(self, folder: Path, tokenizer: Any) -> None:
        """Write the policy as a Hugging Face model folder."""
        ...

    def load_weights(self, weights: WeightSource) -> None:
        """Copy weights into the policy's parameters, whose storage never moves."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
