"""Off-policy evaluation: the expected return of a policy from episodes that another policy played.

Per-decision importance sampling (Precup, Sutton and Singh 2000): a turn's reward counts with the ratio of the
probabilities of all actions up to it, and of none after it.

    V = mean over episodes of   sum over turns k of   gamma^k r_k  w_k,      w_k = product over turns j <= k of pi / mu

Its variance grows with the length of the episodes. The effective sample size (sum w)^2 / sum w^2 says how many episodes
of the evaluated policy itself the data is worth (Kong 1992).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.algos.stats import effective_sample_size

SMALLEST_EFFECTIVE_SIZE = 30.0
"""Effective sample size below which the normal interval means nothing."""
NORMAL_95 = 1.959964
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicyEstimate:
    value: float
    low: float
    high: float
    """95 % confidence interval of the mean over episodes."""
    behaviour: float
    """Mean return of the episodes themselves."""
    effective_size: float
    episodes: int

    @property
    def refusal(self) -> str | None:
        """Return why the estimate must not be used; None if it may."""
        if self.effective_size >= SMALLEST_EFFECTIVE_SIZE:
            return None
        return (
            f"the {self.episodes} episodes are worth only {self.effective_size:.1f} of the evaluated policy, and an "
            f"estimate needs {SMALLEST_EFFECTIVE_SIZE:.0f}"
        )


def estimate_value(log_ratios: Tensor, rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> OffPolicyEstimate:
    """Estimate the value from [B, K] tensors: one row per episode, one column per turn.

    `log_ratios` are log pi - log mu of a turn's action, the sum over its tokens; where the mask is 0 nothing is read.
    """
    turns = torch.arange(mask.shape[1], dtype=torch.float64)
    log_weights = torch.where(mask, log_ratios.double(), 0.0).cumsum(dim=1)
    discounted = torch.where(mask, rewards.double(), 0.0) * gamma**turns
    returns = (log_weights.exp() * discounted).sum(dim=1)  # [B]
    count = len(returns)
    error = NORMAL_95 * float(returns.std()) / math.sqrt(count) if count > 1 else math.inf
    value = float(returns.mean())
    return OffPolicyEstimate(
        value=value,
        low=value - error,
        high=value + error,
        behaviour=float(discounted.sum(dim=1).mean()),
        effective_size=effective_sample_size(log_weights[:, -1]),  # of whole episodes
        episodes=count,
    )
