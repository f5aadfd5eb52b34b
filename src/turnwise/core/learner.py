"""The protocol of learners, which hold the policy's weights and improve them.

Implementations: `LocalLearner` (training/learner.py), `ShardedLearner` (training/sharded.py) and, in Ray actors,
`RemoteLearner` (cluster/learners.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from turnwise.core.protocols import WeightSource
from turnwise.core.samples import Batch, TrainBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores of the M sampled tokens of a batch; None if not requested."""

    policy_logprobs: Tensor | None = None  # [M]
    entropy: Tensor | None = None  # [M]
    values: Tensor | None = None  # [M]
    end_values: Tensor | None = None  # [B] value after the last token of each sample
    ref_logprobs: Tensor | None = None  # [M]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Scores that an algorithm requests from `Learner.score`."""

    policy_logprobs: bool = False
    entropy: bool = False
    values: bool = False
    ref_logprobs: bool = False

    @property
    def anything(self) -> bool:
        return self.policy_logprobs or self.entropy or self.values or self.ref_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings that the loop may change from one training step to the next."""

    step: int
    """Training steps done so far: the learning-rate schedule and the critic's warm-up depend on it."""
    kl_coef: float = 0.0
    """Coefficient of the KL term in the loss."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus."""
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
