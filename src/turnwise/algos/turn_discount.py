"""Adaptive turn discount, from how well the critic explains returns at each distance from the end (not published).

A critic that predicts returns as well ten turns ahead as at the last turn can carry credit over ten turns; one whose
explained variance halves with every turn mostly carries noise that far. If the explained variance d turns before the
end falls like EV_d = EV_0 g^d, then g is the discount:

    log gamma = sum_d n_d d log(e_d / e_0) / sum_d n_d d^2,   e_d = max(EV_d, FLOOR),   n_d tokens at distance d

a least-squares line through the origin, clipped to [low, 1]. A critic that explains nothing at any distance gives 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnwise.algos.diagnostics import explained_variance

MIN_COUNT = 16
"""Tokens at a distance, at least, for a fit."""
FLOOR = 0.05
"""Least explained variance, for the logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticFit:
    """Explained variance of the critic at one distance from the end, over `count` tokens."""

    explained: float
    count: int


def turn_distances(turn_ids: Tensor, mask: Tensor) -> Tensor:
    """[B, T] number of turns from each sampled token's turn to the last, -1 where the mask is 0."""
    last = torch.where(mask, turn_ids, -1).amax(dim=1, keepdim=True)
    return torch.where(mask, last - turn_ids, -1)


def critic_fit_by_distance(values: Tensor, returns: Tensor, distances: Tensor) -> dict[int, CriticFit]:
    """Compute the fit per distance from values, returns and turn distances [M].

    Distances with fewer than MIN_COUNT tokens or with constant returns are left out. `returns` are undiscounted sums
    of future rewards: with bootstrapped targets the critic would judge itself.
    """
    fits = {}
    for distance in distances.unique().tolist():
        here = distances == distance
        explained = explained_variance(values[here], returns[here])
        if distance >= 0 and explained is not None and int(here.sum()) >= MIN_COUNT:
            fits[distance] = CriticFit(explained=explained, count=int(here.sum()))
    return fits


def fit_discount(critic_fit: Mapping[int, CriticFit], low: float = 0.8) -> float | None:
    """Return gamma by the module's formula; None without a fit at the last turn and at another one."""
    if 0 not in critic_fit or len(critic_fit) < 2:
        return None
    nearest = max(critic_fit[0].explained, FLOOR)
    rise = sum(
        fit.count * distance * math.log(max(fit.explained, FLOOR) / nearest) for distance, fit in critic_fit.items()
    )
    run = sum(fit.count * distance**2 for distance, fit in critic_fit.items())
    return min(1.0, max(low, math.exp(rise / run)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveDiscount:
    """Turn discount as a moving average of the fitted discounts. Its only state is `gamma`."""

    gamma: float = 1.0
    momentum: float = 0.9
    low: float = 0.8
    """Lower bound of the discount; at 0.8 a turn ten turns ahead keeps a tenth of its weight."""

    def update(self, critic_fit: Mapping[int, CriticFit]) -> "AdaptiveDiscount":
        """Return the discount of the next step; unchanged if there is no fit."""
        fitted = fit_discount(critic_fit, low=self.low)
        if fitted is None:
            return self
        return replace(self, gamma=self.momentum * self.gamma + (1 - self.momentum) * fitted)
