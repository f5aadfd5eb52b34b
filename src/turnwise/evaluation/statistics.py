"""How sure a success rate is."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pvariance


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a rate (Wilson 1927): the rates p for which `successes` of `n` is no surprise.

    The ends solve |successes / n - p| = z * sqrt(p * (1 - p) / n). Unlike the normal interval it stays inside [0, 1]
    and is honest at 0 % and 100 %. Nothing tried says nothing: (0, 1).
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    return wilson_of_rate(successes / n if n else 0.0, n, confidence)


def wilson_of_rate(rate: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """The same for a rate that was found in `n` independent tries, which need not be a whole number."""
    z = standard_normal(confidence)
    if n == 0:
        return 0.0, 1.0
    centre = rate + z * z / (2 * n)
    margin = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if rate == 0 else (centre - margin) / scale
    high = 1.0 if rate == 1 else (centre + margin) / scale
    return low, high


def wilson_by_task(rates: Sequence[float], episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of the mean of the tasks' success rates, where `episodes` tries share the tasks.

    Tries of one task are alike, so they are worth fewer than as many tasks: the interval takes the number of
    independent tries whose mean would vary as much as the tasks' rates do (Kish's effective sample size), which lies
    between the number of tasks and that of the episodes. With one try a task it is `wilson`.
    """
    if not rates:
        return wilson_of_rate(0.0, 0, confidence)
    rate, variance = fmean(rates), pvariance(rates) / len(rates)
    effective = rate * (1 - rate) / variance if variance > 0 else 0.0
    return wilson_of_rate(rate, min(max(effective, len(rates)), episodes), confidence)


def standard_normal(confidence: float) -> float:
    """How many standard deviations each way hold this share of a normal distribution: 1.96 for 0.95."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not at {confidence}")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n tries, drawn without replacement, hold one of the c that succeeded.

    1 - C(n - c, k) / C(n, k): unbiased for the chance that k fresh tries hold a success, which 1 - (1 - c / n)^k
    is not (Chen et al. 2021, "Evaluating Large Language Models Trained on Code").
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} successes of {n}")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} tries a task, not {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


SCALE = 400.0
WIDEST = 100 * SCALE
"""How far from all opponents a rating is looked for."""
PRIOR_GAMES = 1.0
"""Drawn games against each opponent that are added to those played: who won them all is not infinitely stronger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What came of the games against one opponent."""

    opponent: float
    """Its rating."""
    points: float
    games: float

    def __post_init__(self) -> None:
        if not 0 <= self.points <= self.games:
            raise ValueError(f"{self.points} points in {self.games} games")


def expected(rating: float, opponent: float) -> float:
    """The points a game that a player may expect, from 0 to 1."""
    odds: float = 10.0 ** (min(max((opponent - rating) / SCALE, -300.0), 300.0))
    return 1 / (1 + odds)


def performance(scores: Iterable[Score], prior_games: float = PRIOR_GAMES) -> float:
    """The rating that makes these scores likeliest, those of the opponents being known.

    The likelihood is greatest where the points that were to be expected are those that were made (its derivative is
    their difference), and the former rise with the rating: so it is found by halving.
    """
    scores = list(scores)
    if not scores:
        raise ValueError("no games, no rating")
    made = sum(score.points + prior_games / 2 for score in scores)
    low = min(score.opponent for score in scores) - WIDEST
    high = max(score.opponent for score in scores) + WIDEST
    while high - low > 1e-6:
        middle = (low + high) / 2
        hoped = sum((score.games + prior_games) * expected(middle, score.opponent) for score in scores)
        low, high = (low, middle) if hoped > made else (middle, high)
    return (low + high) / 2
