"""An adaptive turn discount: it follows the critic's own error, as explained variance by turn distance.

Beyond the published. A critic that foresees the return as well from ten turns away as from the last turn can carry
credit over ten turns; one whose foresight halves with every turn carries mostly noise that far. If the share of the
return's variance that it explains d turns before the end falls like EV_d = EV_0 g^d, then g is how fast its word loses
worth with distance, and that is the discount:

    log gamma = sum_d n_d d log(e_d / e_0) / sum_d n_d d^2,   e_d = max(EV_d, floor),   n_d tokens at distance d

a least-squares line through the origin, clipped to [low, 1]. A critic that knows nothing, at any distance, gives 1: it
has no error to follow.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turnwise.algos.diagnostics import explained_variance


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticFit:
    """What the critic explains at one distance from the end."""

    explained: float
    count: int


def turn_distances(turn_ids: Tensor, mask: Tensor) -> Tensor:
    """[B, T] turns from each sampled token's turn to the trajectory's last, -1 where nothing was sampled."""
    last = torch.where(mask, turn_ids, -1).amax(dim=1, keepdim=True)
    return torch.where(mask, last - turn_ids, -1)


def critic_fit_by_distance(
    values: Tensor, returns: Tensor, distances: Tensor, min_count: int = 16
) -> dict[int, CriticFit]:
    """From values, returns and turn distances [M]; distances with fewer tokens, or constant returns, are left out.

    `returns` are the rewards to come, undiscounted: a bootstrapped target would let the critic judge itself.
    """
    found = {}
    for distance in distances.unique().tolist():
        here = distances == distance
        explained = explained_variance(values[here], returns[here])
        if distance >= 0 and explained is not None and int(here.sum()) >= min_count:
            found[distance] = CriticFit(explained=explained, count=int(here.sum()))
    return found


def fit_discount(critic_fit: Mapping[int, CriticFit], low: float = 0.8, floor: float = 0.05) -> float | None:
    """The gamma of the module's formula; None without a last turn and another one to compare it with."""
    if 0 not in critic_fit or len(critic_fit) < 2:
        return None
    nearest = max(critic_fit[0].explained, floor)
    rise = sum(
        each.count * distance * math.log(max(each.explained, floor) / nearest) for distance, each in critic_fit.items()
    )
    run = sum(each.count * distance**2 for distance, each in critic_fit.items())
    return min(1.0, max(low, math.exp(rise / run)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveDiscount:
    """The turn discount in use, a moving average of what each step's critic asks for. Its whole state is `gamma`."""

    gamma: float = 1.0
    momentum: float = 0.9
    low: float = 0.8
    """The discount never falls below: a turn ten turns ahead keeps a tenth."""

    def update(self, critic_fit: Mapping[int, CriticFit]) -> "AdaptiveDiscount":
        """Of the next step; the same where this one had nothing to tell."""
        wanted = fit_discount(critic_fit, low=self.low)
        if wanted is None:
            return self
        return replace(self, gamma=self.momentum * self.gamma + (1 - self.momentum) * wanted)
