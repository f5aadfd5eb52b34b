"""Elo: how much stronger one player is than another, from the games between them.

A player of rating r scores 1 / (1 + 10^((s - r) / 400)) points a game against one of rating s on average, a win being 1
and a draw a half (Elo 1978, "The Rating of Chessplayers, Past and Present"): 400 more is ten to one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

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
