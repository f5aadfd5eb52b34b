"""Training data (samples, packed batches) and the learner's protocol."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from turnwise.core.protocols import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One segment of a trajectory, as tensors of equal length T.

    ids       s s u u a a u u a a
    mask      0 0 0 0 1 1 0 0 1 1     1 for sampled tokens
    turn_ids  . . . . 0 0 . . 1 1     -1 where the mask is 0
    logprobs  . . . . p p . . p p     of the sampler; 0 where the mask is 0
    """

    trajectory: int
    """Index of its trajectory in the step. Aggregations call a trajectory a sequence."""
    ids: Tensor  # [T] int64
    mask: Tensor  # [T] bool
    turn_ids: Tensor  # [T] int64
    logprobs: Tensor  # [T] float32
    temperatures: Tensor  # [T] float32, 1 where the mask is 0

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


_Packed = TypeVar("_Packed", Batch, TrainBatch)


def on_device(packed: _Packed, device: torch.device) -> _Packed:
    """Copy the tensors to the device without waiting for the transfer."""
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
    """Scores of the M sampled tokens of a batch; None if not requested."""

    logprobs: Tensor | None = None  # [M]
    entropy: Tensor | None = None  # [M]
    values: Tensor | None = None  # [M]
    end_values: Tensor | None = None  # [B] value after the last token of each sample
    ref_logprobs: Tensor | None = None  # [M]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Scores that an algorithm requests from `Learner.score`."""

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
    def ranks(self) -> int:
        """Number of processes that share the micro-batches of an optimizer step."""
        ...

    @property
    def max_grad_norm(self) -> float: ...
    @property
    def skipped_steps(self) -> int:
        """Optimizer steps skipped so far because a gradient was not finite."""
        ...

    def begin_step(self, settings: StepSettings) -> None: ...
    def score(self, batches: Sequence[Batch], needs: Needs) -> list[Scores]: ...
    def forward_backward(self, batches: Iterable[TrainBatch], *, tokens: bool = False) -> list[dict[str, Tensor]]:
        """Accumulate the gradients of all micro-batches of an optimizer step.

        Returns for each batch the sum of each metric over its sampled tokens, and `tokens`, their number.

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

    def check_finite(self, when: str) -> None:
        """Raise DivergedError if the weights or the optimizer states are not finite."""
        ...

    def save_state(self, folder: Path) -> None:
        """Write the state besides the policy's weights: optimizers, critic, reference adapter."""
        ...

    def load_state(self, folder: Path, *, skipped_steps: int) -> None:
        """Load what `save_state` wrote. The weights are loaded first, by `load_weights`."""
        ...
