"""Two rankings as one: reciprocal rank fusion, which needs no common scale of scores."""

from collections.abc import Sequence

from turnwise.tools.search.lexical import Ranked

RANK_OFFSET = 60
"""Of Cormack, Clarke and Buettcher, SIGIR 2009: how little a first place alone counts against two good ones."""


def fuse(rankings: Sequence[Ranked], top: int) -> Ranked:
    """Every place gives 1 / (60 + place); the sums rank anew, of equal ones the earlier passage first."""
    sums: dict[int, float] = {}
    for ranked in rankings:
        for place, (passage, _) in enumerate(ranked, start=1):
            sums[passage] = sums.get(passage, 0.0) + 1 / (RANK_OFFSET + place)
    return sorted(sums.items(), key=lambda each: (-each[1], each[0]))[:top]
