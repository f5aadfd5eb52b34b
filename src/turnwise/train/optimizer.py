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
    muon_learning_rate: float | None = None
    """Of the matrices, if Muon is to train them; None: AdamW trains everything."""


class Optimizer:
    """AdamW, or Muon for the matrices and AdamW for the rest, over one set of parameters.

    Parameters are changed in place and never replaced: the engine reads the same storage.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], settings: OptimizerSettings, share: Callable[[int], float]
    ) -> None:
        self.parameters = list(parameters)
        self.settings, self.share = settings, share
        matrices: list[nn.Parameter] = []
        if settings.muon_learning_rate is not None:
            matrices = [each for each in self.parameters if each.ndim == 2 and not getattr(each, TABLE, False)]
        chosen = {id(each) for each in matrices}
        rest = [each for each in self.parameters if id(each) not in chosen]
        self._parts: list[torch.optim.Optimizer] = []
        if rest:
            self._parts.append(
                torch.optim.AdamW(
                    rest,
                    lr=settings.learning_rate,
                    betas=settings.betas,
                    weight_decay=settings.weight_decay,
                    fused=True,
                )
            )
        if matrices:
            rate = settings.muon_learning_rate or 0.0
            self._parts.append(torch.optim.Muon(matrices, lr=rate, weight_decay=settings.weight_decay))
        self._rates = [part.param_groups[0]["lr"] for part in self._parts]

    def step(self, training_step: int, scale: float = 1.0) -> tuple[float, bool]:
        """(gradient norm before clipping, whether it stepped): a non-finite gradient changes nothing.

        `scale`: of the learning rate, beside its schedule.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm))
        finite = math.isfinite(norm)
        for part, rate in zip(self._parts, self._rates, strict=True):
            if finite:
                part.param_groups[0]["lr"] = rate * self.share(training_step) * scale
                part.step()
            part.zero_grad(set_to_none=True)
        return norm, finite

    def tensors(self) -> dict[str, Tensor]:
        """The optimisers' state as flat tensors, by part and parameter number."""
        return {
            f"{part}.{number}.{name}": value
            for part, optimizer in enumerate(self._parts)
            for number, each in optimizer.state_dict()["state"].items()
            for name, value in each.items()
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        states: list[dict[int, dict[str, Tensor]]] = [{} for _ in self._parts]
        for key, value in tensors.items():
            part, number, name = key.split(".", 2)
            states[int(part)].setdefault(int(number), {})[name] = value
        for optimizer, state in zip(self._parts, states, strict=True):
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


TABLE = "turnwise_table"
"""Marks a parameter of two dimensions that is a table of vectors (an embedding, an output layer)."""


def mark_tables(model: Any) -> None:
    """Tells Muon what to leave to AdamW: the input and output embeddings."""
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        setattr(module.weight, TABLE, True)
