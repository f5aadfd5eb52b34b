"""Stop a run whose optimizer steps are skipped one after another, because their gradients are not finite."""

import math
from collections.abc import Callable, Mapping

from torch import Tensor

from turnwise.algos.settings import AlgoConfig
from turnwise.core.errors import DivergedError

MAX_SKIPPED = 3
"""Skipped optimizer steps in a row after which a run stops. A single one is an outlier; these are not."""


class SkipMonitor:
    """Counts the skipped optimizer steps in a row."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def add(self, metrics: Mapping[str, float], step: int, find_cause: Callable[[], str]) -> None:
        """Count an optimizer step, which was skipped if one of its gradient norms is not finite.

        Raise DivergedError with the cause after MAX_SKIPPED of them. `step`: number of the training step.
        """
        norms = [value for name, value in metrics.items() if name.endswith("grad_norm")]
        self._in_a_row = 0 if all(map(math.isfinite, norms)) else self._in_a_row + 1
        if self._in_a_row >= MAX_SKIPPED:
            raise DivergedError(
                f"{self._in_a_row} optimizer steps in a row were skipped, the last one in step {step}: their gradients "
                f"were not finite. {find_cause()}"
            )


def find_cause(sums: Mapping[str, Tensor], algo: AlgoConfig) -> str:
    """Return why a gradient is not finite and what to do, from the metrics of the optimizer step."""
    broken = {name for name, value in sums.items() if not math.isfinite(float(value))}
    if "entropy" in broken:
        return "The model's own outputs are not finite: check the weights of model.name, or set model.dtype float32."
    if "policy_loss" in broken:
        return f"algo.loss {algo.loss.kind} returned NaN or infinity: return finite ones, or choose another."
    if "kl" in broken:
        return "The KL to the reference is not finite: check algo.kl_coef and algo.kl_estimator."
    if "value_loss" in broken:
        return "The critic's loss is not finite: lower critic.learning_rate."
    return (
        f"The losses are finite, but not their gradients: check algo.loss {algo.loss.kind} for functions like "
        "the square root of 0, lower train.learning_rate, or set model.dtype float32."
    )
