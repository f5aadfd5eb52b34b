"""Confidence intervals of success rates, pass@k and Elo ratings."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pvariance


def wilson_interval(rate: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a success rate from `n` independent tries (Wilson 1927).

    The bounds solve |rate - p| = z * sqrt(p * (1 - p) / n). Unlike the normal interval, it stays inside [0, 1] and has
    a width at 0 % and 100 %. `n` need not be a whole number; for 0 the interval is (0, 1).
    """
    z = normal_quantile(confidence)
    if n == 0:
        return 0.0, 1.0
    centre = rate + z * z / (2 * n)
    margin = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if rate == 0 else (centre - margin) / scale
    high = 1.0 if rate == 1 else (centre + margin) / scale
    return low, high


def wilson_interval_by_task(rates: Sequence[float], episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of the mean of per-task success rates, from `episodes` episodes in total.

    Tries of the same task are correlated, so the interval uses Kish's effective sample size: the number of independent
    tries whose mean would vary as much as the rates do, clipped to between the number of tasks and of episodes. With
    one try per task it equals `wilson_interval`.
    """
    if not rates:
        return wilson_interval(0.0, 0, confidence)
    rate, variance = fmean(rates), pvariance(rates) / len(rates)
    effective = rate * (1 - rate) / variance if variance > 0 else 0.0
    return wilson_interval(rate, min(max(effective, len(rates)), episodes), confidence)


def normal_quantile(confidence: float) -> float:
    """Return the two-sided quantile of the standard normal distribution: 1.96 for 0.95."""
    if not 0 < confidence < 1:
        raise ValueError(f"The confidence must be between 0 and 1, not {confidence}.")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from n tries with c successes.

    1 - C(n - c, k) / C(n, k): the probability that k of the n tries, drawn without replacement, include a success. The
    plug-in estimate 1 - (1 - c / n)^k is biased (Chen et al. 2021, "Evaluating Large Language Models Trained on Code").
    """
    if not 0 <= c <= n:
        raise ValueError(f"The number of successes must be between 0 and {n}, not {c}.")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} tries per task, not {n}.")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


SCALE = 400.0
WIDEST = 100 * SCALE
"""Search range of a rating below the weakest and above the strongest opponent."""
PRIOR_GAMES = 1.0
"""Draws added per opponent, so that a player who won every game has a finite rating."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchScore:
    """Result of the games against one opponent."""

    opponent: float
    """Rating of the opponent."""
    points: float
    games: float

    def __post_init__(self) -> None:
        if not 0 <= self.points <= self.games:
            raise ValueError(f"The points of {self.games} games must be between 0 and {self.games}, not {self.points}.")


def expected_score(rating: float, opponent: float) -> float:
    """Return the expected points per game, from 0 to 1."""
    odds: float = 10.0 ** (min(max((opponent - rating) / SCALE, -300.0), 300.0))
    return 1 / (1 + odds)


def performance_rating(scores: Iterable[MatchScore], prior_games: float = PRIOR_GAMES) -> float:
    """Return the maximum-likelihood rating for these scores, given the ratings of the opponents.

    The derivative of the log-likelihood is the points scored minus the points expected. These grow with the rating, so
    bisection finds the root.
    """
    scores = list(scores)
    if not scores:
        raise ValueError("A rating needs at least one game.")
    scored = sum(score.points + prior_games / 2 for score in scores)
    low = min(score.opponent for score in scores) - WIDEST
    high = max(score.opponent for score in scores) + WIDEST
    while high - low > 1e-6:
        middle = (low + high) / 2
        expected = sum((score.games + prior_games) * expected_score(middle, score.opponent) for score in scores)
        low, high = (low, middle) if expected > scored else (middle, high)
    return (low + high) / 2
