"""One set of parameters, its AdamW, its learning rate over the steps, and the refusal of non-finite gradients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    kind: Literal["constant", "linear", "cosine"]
    total_steps: int
    warmup_steps: int
    final_share: float

    def share(self, step: int) -> float:
        """Share of the learning rate in training step `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant":
            return 1.0
        done = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        left = 1.0 - min(1.0, done) if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.final_share + (1 - self.final_share) * left


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    learning_rate: float
    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float


class Optimizer:
    """Parameters are changed in place and never replaced: the engine reads the same storage."""

    def __init__(self, parameters: Sequence[nn.Parameter], settings: OptimizerSettings, share: Callable[[int], float]):
        self.parameters = list(parameters)
        self.settings, self.share = settings, share
        self._adam = torch.optim.AdamW(
            self.parameters,
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self, training_step: int) -> tuple[float, bool]:
        """(gradient norm before clipping, whether it stepped): a non-finite gradient changes nothing."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm))
        finite = math.isfinite(norm)
        if finite:
            for group in self._adam.param_groups:
                group["lr"] = self.settings.learning_rate * self.share(training_step)
            self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return norm, finite

    def tensors(self) -> dict[str, Tensor]:
        """The optimiser's state as flat tensors, by parameter number."""
        state: dict[int, dict[str, Any]] = self._adam.state_dict()["state"]
        return {f"{number}.{name}": value for number, each in state.items() for name, value in each.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, name = key.split(".", 1)
            state.setdefault(int(number), {})[name] = value
        self._adam.load_state_dict({"state": state, "param_groups": self._adam.state_dict()["param_groups"]})
