"""Muon for processors: the same steps as `torch.optim.Muon`, in float32.

torch makes its products in bfloat16, which processors without such numbers emulate: a step of the demo then took 29 s
instead of 5.5 on an ARM one.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class HostMuon(torch.optim.Muon):
    """Its state and its defaults are torch's; the rate of a tall matrix is raised as it is there by default."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters: list[Tensor] = []
            gradients: list[Tensor] = []
            moments: list[Tensor] = []
            self._init_group(group, parameters, gradients, moments)
            for parameter, gradient, moment in zip(parameters, gradients, moments, strict=True):
                moment.lerp_(gradient, 1 - group["momentum"])
                direction = orthogonal(
                    gradient.lerp(moment, group["momentum"]), group["ns_coefficients"], group["ns_steps"], group["eps"]
                )
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The matrix with its singular values driven towards 1, by Newton and Schulz's iteration of the fifth degree."""
    first, third, fifth = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.float().T if tall else matrix.float()  # the smaller side is squared
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=third, alpha=fifth), x, beta=first)
    return x.T if tall else x
