"""Types of the policy losses, and sums over the tokens of a turn or segment.

Ratios are per token, per turn or per segment (the level "sequence"); all tokens of a segment are in one
micro-batch, so a ratio does not depend on how the step is split:

    segment_ids   0 0 0 0 0 | 1 1 1 1
    turn_ids      0 0 1 1 1 | 0 0 0 1
    units, turn   0 0 1 1 1   2 2 2 3      tokens of one unit share one ratio
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from turnwise.algos.kl import clamp_log_ratio
from turnwise.algos.user_code import class_of_function, naming
from turnwise.core.errors import UserError
from turnwise.settings.choice import Choice
from turnwise.text.truncation import describe_value

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    from turnwise.algos.lazy_torch import torch

RatioLevel = Literal["token", "turn", "sequence"]
RATIO_LEVELS: tuple[RatioLevel, ...] = ("token", "turn", "sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The M sampled tokens of a packed micro-batch."""

    policy_logprobs: Tensor  # [M] of the current policy: the only ones with a gradient
    old_logprobs: Tensor  # [M] denominator of the ratio
    sampler_logprobs: Tensor  # [M] of the policy that sampled the tokens
    advantages: Tensor  # [M]
    segment_ids: Tensor  # [M] int64, equal on the tokens of one segment
    turn_ids: Tensor  # [M] int64, equal on the tokens of one turn in a segment
    selected: Tensor | None = None  # [M] bool, tokens chosen by `SelectingLoss.select`; None without it
    factors: Tensor | None = None  # [M] from `PairLoss.weigh`; None without it

    def __post_init__(self) -> None:
        given = (self.old_logprobs, self.sampler_logprobs, self.advantages, self.segment_ids, self.turn_ids)
        tensors = [tensor for tensor in (*given, self.selected, self.factors) if tensor is not None]
        if self.policy_logprobs.dim() != 1 or any(tensor.shape != self.policy_logprobs.shape for tensor in tensors):
            raise ValueError("Log-probabilities, advantages, ids and selected tokens must have the same shape [M].")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """Result of a loss function."""

    token_loss: Tensor  # [M]
    """Loss of each token, with gradient; turnwise aggregates it over the optimizer step."""
    metrics: dict[str, Tensor]
    """[M] each, without gradient; the caller averages them over all tokens of the optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairInputs:
    """All trained tokens of an optimizer step, for losses that compare the members of a group."""

    policy_logprobs: Tensor  # [M] of the current policy, without gradient
    ref_logprobs: Tensor  # [M] of the reference
    advantages: Tensor  # [M]
    group_ids: Tensor  # [M] int64, equal on the tokens of one group
    num_trajectories: int
    """Trajectories with trained tokens in the optimizer step, over which the aggregation averages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    factors: Tensor  # [M] for `LossInputs.factors`
    metrics: dict[str, float]
    """Means over the pairs of the optimizer step; empty without any."""


class Loss(Choice):
    """A policy loss and its settings.

    A loss of your own, algo.loss FILE.py:name, is a class derived from `tw.Loss`, or a function of the inputs.
    """

    adds_penalty: ClassVar[bool] = False
    """Has a term that is nonzero where the advantage is 0."""

    @abstractmethod
    def compute(self, inputs: LossInputs) -> LossResult:
        """Return one loss per token."""

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> type[Self]:
        return class_of_function(cls, function, setting="algo.loss", method="compute", argument="inputs")


class SelectingLoss(Loss):
    """A policy loss that treats the tokens of `LossInputs.selected` in another way."""

    @abstractmethod
    def select(self, inputs: LossInputs, draws: Tensor) -> Tensor:
        """Select tokens [M] bool among all trained tokens of an optimizer step, before its first gradient.

        `draws` holds one uniform random number per token [M].
        """


class PairLoss(Loss):
    """A loss that compares the members of a group under policy and reference.

    A group's members are trained in one optimizer step.
    """

    @abstractmethod
    def weigh(self, inputs: PairInputs) -> PairResult:
        """Return `LossInputs.factors` of the tokens of an optimizer step, before its first gradient."""


def compute_loss(loss: Loss, inputs: LossInputs) -> LossResult:
    """Compute the token losses, and check those of the user's code; a tensor alone gets the metrics of every loss."""
    with naming(loss, "algo.loss") as label:
        returned: Any = loss.compute(inputs)
    is_tensor = isinstance(returned, torch.Tensor)
    result = LossResult(token_loss=returned, metrics=loss_metrics(inputs)) if is_tensor else returned
    if not isinstance(result, LossResult):
        raise UserError(f"{label} returned {describe_value(returned)}: return a tensor [M] or LossResult.")
    if result.token_loss.shape != inputs.policy_logprobs.shape:
        shapes = f"{list(result.token_loss.shape)} instead of {list(inputs.policy_logprobs.shape)}"
        raise UserError(f"{label} returned the shape {shapes}: one loss per token, not yet averaged.")
    if inputs.policy_logprobs.requires_grad and not result.token_loss.requires_grad:
        raise UserError(f"{label} returned a loss without a gradient: compute it from inputs.policy_logprobs.")
    return result


def unit_ids(segment_ids: Tensor, turn_ids: Tensor, level: RatioLevel) -> Tensor:
    """[M] unit number of each token, from 0; tokens may come in any order."""
    if level == "token":
        return torch.arange(segment_ids.shape[0], device=segment_ids.device)
    if level == "sequence":
        return segment_ids.unique(return_inverse=True)[1]
    if level == "turn":
        return torch.stack((segment_ids, turn_ids)).unique(dim=1, return_inverse=True)[1]
    raise ValueError(f'Unknown ratio level "{level}"; expected one of {", ".join(RATIO_LEVELS)}.')


def sum_over(values: Tensor, units: Tensor) -> Tensor:
    """[M] sum over each token's unit, with gradients to all of its tokens."""
    totals = values.new_zeros(units.shape[0]).index_add(0, units, values)
    return totals[units]


def max_over(values: Tensor, units: Tensor) -> Tensor:
    """[M] largest value of each token's unit."""
    largest = values.new_full(units.shape, -torch.inf).scatter_reduce(0, units, values, "amax")
    return largest[units]


def mean_over(values: Tensor, units: Tensor) -> Tensor:
    """[M] mean over each token's unit, with gradients to all of its tokens."""
    return sum_over(values, units) / sum_over(torch.ones_like(values), units)


def loss_metrics(inputs: LossInputs, **extra: Tensor) -> dict[str, Tensor]:
    """Return the metrics of every loss, the ratio and an estimate of KL(pi_old | pi), and the extra ones of a loss."""
    log_ratio = clamp_log_ratio(inputs.policy_logprobs - inputs.old_logprobs).detach()
    shared = {"ratio": log_ratio.exp(), "approx_kl": -log_ratio}
    return shared | {name: value.to(log_ratio.dtype) for name, value in extra.items()}
