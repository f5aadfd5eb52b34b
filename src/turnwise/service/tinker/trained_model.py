"""A model of a tenant: its weights, gradients and optimizer, and the requests that change them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from turnwise.core.errors import DivergedError
from turnwise.core.learner import Needs
from turnwise.service.tinker.adapters import LoraShape, SharedModel, copy_tensors
from turnwise.service.tinker.batches import DatumBatch, build_objective, encode_output, pack_data, split_data
from turnwise.service.tinker.datums import ForwardBackward
from turnwise.service.tinker.errors import RequestFailure
from turnwise.service.tinker.losses import LOSSES, LossSpec, read_loss
from turnwise.training.learner import LocalLearner
from turnwise.training.optimizer import Optimizer, OptimizerSettings

OPTIMIZER = "optimizer."
"""Prefix of the optimizer's tensors in a state."""


class AdamParams(BaseModel):
    """Settings of one optimizer step."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    learning_rate: float = Field(1e-4, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-12, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    grad_clip_norm: float = Field(0.0, ge=0)
    """Largest norm of the gradient; 0: it is not clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What a model is created from."""

    shape: LoraShape | None
    """None: all weights are trained."""
    seed: int


class TrainedModel:
    """One adapter of the shared model, or a model of its own with all weights trained."""

    def __init__(self, spec: ModelSpec, shared: SharedModel, own: Any | None = None) -> None:
        """`own`: the model whose weights are all trained, if the spec has no adapter."""
        self.spec, self._shared = spec, shared
        self.adapter: str | None = None
        if spec.shape is None:
            assert own is not None
            self.model = own
            self.parameters: dict[str, nn.Parameter] = dict(own.named_parameters())
        else:
            self.model = shared.model
            self.adapter = shared.add(spec.shape, spec.seed)
            self.parameters = shared.parameters(self.adapter)
        self.has_gradients = False
        self.losses = dict[str, float]()
        """Sums since the last optimizer step: of losses, tokens and data."""
        self.diverged = False
        """Whether the weights are not finite since an optimizer step."""
        self._make_optimizer()

    def _make_optimizer(self) -> None:
        settings = OptimizerSettings(learning_rate=0.0, weight_decay=0.0, max_grad_norm=math.inf)
        optimizer = Optimizer(list(self.parameters.values()), settings, lambda step: 1.0)
        self.learner = LocalLearner(self.model, build_objective(LOSSES["cross_entropy"]), optimizer)

    def close(self) -> None:
        """Free what the model holds of the shared one."""
        self.learner.optimizer.masters.release()
        if self.adapter is not None:
            self._shared.remove(self.adapter)

    def activate(self) -> None:
        if self.adapter is not None:
            self._shared.activate(self.adapter)

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    def forward_backward(self, request: ForwardBackward) -> bytes:
        """Add the gradients of a request, unless it is forward-only; return the encoded output."""
        if self.diverged:
            raise RequestFailure("The weights are not finite since an optimizer step: load a checkpoint.")
        spec, settings = read_loss(request)
        self.activate()
        self.learner.objective = build_objective(spec)
        parts = split_data(request.data, self.vocabulary)
        batches = [pack_data(part, spec, settings) for part in parts]
        compute = self._score if request.forward_only else self._backward
        logprobs, losses = zip(*(compute(batch, spec) for batch in batches), strict=True)
        total = sum(losses)
        if not request.forward_only:
            self.has_gradients = True
            added = {"loss": total, "tokens": float(sum(map(len, logprobs))), "data": float(len(request.data))}
            self.losses = {name: self.losses.get(name, 0.0) + value for name, value in added.items()}
        return encode_output(request.data, torch.cat(logprobs), {"loss:sum": total})

    def _backward(self, batch: DatumBatch, spec: LossSpec) -> tuple[Tensor, float]:
        (result,) = self.learner.forward_backward([batch], tokens=True)
        return result["token_logprobs"].cpu(), float(result["policy_loss"])

    def _score(self, batch: DatumBatch, spec: LossSpec) -> tuple[Tensor, float]:
        (scores,) = self.learner.score([batch.batch], Needs(policy_logprobs=True))
        assert scores.policy_logprobs is not None
        losses = spec.function(scores.policy_logprobs, batch.inputs, batch.data)
        return scores.policy_logprobs, float(losses.double().sum())

    def step(self, params: AdamParams) -> dict[str, float]:
        """Take an optimizer step with the gradients since the last one; return its metrics."""
        if self.diverged:
            raise RequestFailure("The weights are not finite since an optimizer step: load a checkpoint.")
        settings = OptimizerSettings(
            learning_rate=params.learning_rate,
            weight_decay=params.weight_decay,
            max_grad_norm=params.grad_clip_norm or math.inf,
        )
        self.learner.optimizer.change_adam(settings, (params.beta1, params.beta2), params.eps)
        before = self.learner.skipped_steps
        try:
            numbers = self.learner.step()
        except DivergedError as error:
            self.diverged = True
            raise RequestFailure(f"{error}. Load a checkpoint to go on.") from error
        finally:
            self.has_gradients, losses, self.losses = False, self.losses, {}
        skipped = float(self.learner.skipped_steps - before)
        metrics = {"grad_norm": numbers["grad_norm"], "learning_rate": params.learning_rate, "skipped": skipped}
        return metrics | losses

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the trained weights."""
        return {name: parameter.detach().cpu().clone() for name, parameter in self.parameters.items()}

    def state(self) -> dict[str, Tensor]:
        """Return the weights and the optimizer's state. There must be no gradients, which it lacks."""
        optimizer = self.learner.optimizer.tensors()
        return self.weights() | {f"{OPTIMIZER}{name}": value.cpu() for name, value in optimizer.items()}

    def load(self, state: Mapping[str, Tensor], *, optimizer: bool) -> None:
        """Load weights, and the optimizer's state or a new one. Raises RequestFailure."""
        weights = {name: value for name, value in state.items() if not name.startswith(OPTIMIZER)}
        copy_tensors(self.parameters, weights)
        moments = {name.removeprefix(OPTIMIZER): value for name, value in state.items() if name.startswith(OPTIMIZER)}
        self.learner.optimizer.masters.release()
        self._make_optimizer()
        if optimizer:
            self.learner.optimizer.load_tensors(moments)
        self.drop_gradients()
        self.diverged = False

    def drop_gradients(self) -> None:
        self.learner.optimizer.masters.drop_gradients()
        self.has_gradients, self.losses = False, {}
