"""Optimizer (AdamW, Muon), learning rate schedule, gradient clipping, and rejection of non-finite gradients."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.core.errors import DivergedError
from turnwise.models.memory.estimate import OFFLOAD_CHUNK
from turnwise.training.master_weights import MasterWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    kind: str
    total_steps: int
    warmup_steps: int
    final_share: float

    def share(self, step: int) -> float:
        """Return the factor of the peak learning rate in training step `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant":
            return 1.0
        done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        left = 1.0 - min(1.0, done) if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.final_share + (1 - self.final_share) * left


BETAS = (0.9, 0.95)
"""Decay rates of AdamW's averages of gradients and of their squares."""
ADAM_EPS = 1e-8
"""Term that AdamW adds to its denominator, torch's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    muon_learning_rate: float | None = None
    """Learning rate of Muon for matrices. None trains all parameters with AdamW."""


class Optimizer:
    """AdamW, or Muon for the matrices and AdamW for the rest, over one set of parameters.

    Parameters are changed in place and never replaced, since the engine may use the same storage. Those of lower
    precision than float32 have master weights. `on_host`: master weights and optimizer state are in host memory, and
    gradients are copied there in chunks of `chunk` elements.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        settings: OptimizerSettings,
        schedule: Callable[[int], float],
        *,
        on_host: bool = False,
        chunk: int = OFFLOAD_CHUNK,
    ) -> None:
        self.masters = MasterWeights(parameters, on_host=on_host, chunk=chunk)
        self.parameters = self.masters.optimised
        self.settings, self.schedule = settings, schedule
        matrices: list[nn.Parameter] = []
        if settings.muon_learning_rate is not None:
            matrices = [
                parameter
                for parameter in self.parameters
                if parameter.ndim == 2 and not getattr(parameter, EMBEDDING, False)
            ]
        chosen = {id(matrix) for matrix in matrices}
        rest = [parameter for parameter in self.parameters if id(parameter) not in chosen]
        self._parts: list[torch.optim.Optimizer] = []
        if rest:
            self._parts.append(
                torch.optim.AdamW(
                    rest,
                    lr=settings.learning_rate,
                    betas=BETAS,
                    weight_decay=settings.weight_decay,
                    fused=True,
                )
            )
        if matrices:
            self._parts.append(self._muon(matrices, settings.muon_learning_rate or 0.0, settings.weight_decay))
        self._rates = [part.param_groups[0]["lr"] for part in self._parts]

    def _muon(self, matrices: Sequence[nn.Parameter], rate: float, weight_decay: float) -> torch.optim.Optimizer:
        muon = CpuMuon if matrices[0].device.type == "cpu" else torch.optim.Muon
        return muon(matrices, lr=rate, weight_decay=weight_decay)

    def step(self, training_step: int, scale: float = 1.0) -> tuple[float, bool]:
        """Clip the gradients and step. Returns the norm before clipping, and False if it was not finite: no step.

        Raises DivergedError if the weights are not finite afterwards. `scale`: factor of the learning rate, besides the
        schedule.
        """
        total = self.gradient_norm()
        clip_factor = self.settings.max_grad_norm / (total + 1e-6)
        if gradients := self._gradients():
            torch._foreach_mul_(gradients, clip_factor.clamp(max=1.0))
        norm = float(total)
        finite = math.isfinite(norm)
        if finite:
            for part, rate in zip(self._parts, self._rates, strict=True):
                part.param_groups[0]["lr"] = rate * self.schedule(training_step) * scale
            for _ in self.masters.chunks():  # one, unless offloaded; after each, the model gets the new weights
                for part in self._parts:
                    part.step()
            self.check_finite(f"after an optimizer step at learning rate {self._format_rates()}")
        self.masters.drop_gradients()
        return norm, finite

    def change_adam(
        self, settings: OptimizerSettings, betas: tuple[float, float] = BETAS, eps: float = ADAM_EPS
    ) -> None:
        """Use these settings from the next step on. Only for an optimizer without Muon."""
        self.settings, self._rates = settings, [settings.learning_rate]
        for group in self._parts[0].param_groups:
            group |= {"betas": betas, "eps": eps, "weight_decay": settings.weight_decay}

    def check_finite(self, when: str) -> None:
        """Raise DivergedError if a parameter is not finite."""
        check_finite(self.masters.parameters, when)

    def gradient_norm(self) -> Tensor:
        """Return the norm of all accumulated gradients."""
        gradients = self._gradients()
        return torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())

    def _gradients(self) -> list[Tensor]:
        return self.masters.gradients()

    def learning_rates(self, training_step: int, scale: float = 1.0) -> dict[str, float]:
        """Return the learning rates of AdamW and Muon, if used, in a training step."""
        muon = self.settings.muon_learning_rate
        rates = {"learning_rate": self.settings.learning_rate} | ({} if muon is None else {"muon_learning_rate": muon})
        return {name: rate * self.schedule(training_step) * scale for name, rate in rates.items()}

    def _format_rates(self) -> str:
        return " and ".join(f"{part.param_groups[0]['lr']:g}" for part in self._parts)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of the optimizers and the master weights as flat tensors."""
        states = {
            f"{part}.{number}.{name}": value
            for part, optimizer in enumerate(self._parts)
            for number, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }
        return states | {f"{MASTER}.{number}": value for number, value in self.masters.tensors().items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self._parts]
        masters = {key.split(".")[1]: value for key, value in tensors.items() if key.startswith(f"{MASTER}.")}
        self.masters.load_tensors(masters)
        for key, value in tensors.items():
            if key.startswith(f"{MASTER}."):
                continue
            part, number, name = key.split(".", 2)
            if int(part) >= len(states):
                raise ValueError(f"it has the state of optimizer {int(part) + 1}, and {len(states)} trains")
            states[int(part)].setdefault(int(number), {})[name] = value
        for optimizer, state in zip(self._parts, states, strict=True):
            _check_shapes(state, [parameter for group in optimizer.param_groups for parameter in group["params"]])
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _check_shapes(state: Mapping[int, Mapping[str, Tensor]], parameters: Sequence[Tensor]) -> None:
    """Raise ValueError for the state of other parameters, which torch would load."""
    for number, tensors in state.items():
        if number >= len(parameters):
            raise ValueError(
                f"it has the optimizer state of {len(state)} parameters, and {len(parameters)} are trained"
            )
        shape = tuple(parameters[number].shape)
        for name, tensor in tensors.items():
            if tensor.ndim and tuple(tensor.shape) != shape:
                raise ValueError(f"{name} of parameter {number} has the shape {tuple(tensor.shape)} instead of {shape}")


def check_finite(tensors: Sequence[Tensor], when: str) -> None:
    """Raise DivergedError if any element is not finite."""
    if not are_finite(tensors):
        raise DivergedError(f"the weights are not finite {when}: lower the learning rate")


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all elements are finite. The host waits for each device once."""
    floating = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    for device in {gradient.device for gradient in floating}:
        norms = torch._foreach_norm([gradient for gradient in floating if gradient.device == device], math.inf)
        if not bool(torch.stack(norms).isfinite().all()):
            return False
    return True


MASTER = "master"
"""Prefix of the master weights among the tensors."""
EMBEDDING = "turnwise_embedding"
"""Attribute of parameters with two dimensions that are not matrices to Muon: embeddings and output layers."""


def mark_embeddings(model: Any) -> None:
    """Mark the input and output embeddings, which AdamW trains instead of Muon."""
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if module is not None:  # a trunk has no output layer
            setattr(module.weight, EMBEDDING, True)


class CpuMuon(torch.optim.Muon):
    """Muon on the CPU, in float32; state, defaults and learning rate adjustment are those of torch."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters: list[Tensor] = []
            gradients: list[Tensor] = []
            moments: list[Tensor] = []
            self._init_group(group, parameters, gradients, moments)
            pairs = [
                (self._local(gradient), self._local(moment))
                for gradient, moment in zip(gradients, moments, strict=True)
            ]
            for gradient, moment in pairs:
                moment.lerp_(gradient, 1 - group["momentum"])
            updates = (gradient.lerp(moment, group["momentum"]) for gradient, moment in pairs)
            settings = group["ns_coefficients"], group["ns_steps"], group["eps"]
            directions = self._orthogonalize(parameters, updates, settings)
            for parameter, direction in zip(parameters, directions, strict=True):
                (rows, columns), weights = parameter.shape, self._local(parameter)
                weights.mul_(1 - group["lr"] * group["weight_decay"])
                weights.add_(direction, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))

    def _local(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor that is in this process."""
        return tensor

    def _orthogonalize(
        self, parameters: Sequence[Tensor], updates: Iterable[Tensor], settings: tuple[Any, int, float]
    ) -> Iterator[Tensor]:
        """Yield the local parts of the directions, from those of the parameters' updates."""
        return (orthogonalize(update, *settings) for update in updates)


def orthogonalize(
    matrix: Tensor,
    coefficients: tuple[float, float, float],
    steps: int,
    eps: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Drive the singular values of a matrix towards 1 by the quintic Newton-Schulz iteration."""
    first, third, fifth = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(dtype).T if tall else matrix.to(dtype)  # the smaller side is squared
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x.T if tall else x
