"""Guesses at what a session will say, so that one pass can give it several tokens.

An agent's turn is half scaffolding: tags, separators, the call's form. What followed the same two tokens before, in any
session, will probably follow them again. A guess changes nothing that is sampled: a pass runs the guessed tokens too,
each position draws its token with the random number that it would have had anyway, and what comes after a wrong guess
is thrown away.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

MAX_DRAFT_TOKENS = 3
"""Tokens guessed at once, at most: rows are padded to the longest, so one long guess is paid for by all."""
PASS_OVERHEAD = 75e6
"""What a pass costs beside its tokens, as the parameters of a model of which one more token would cost as much."""
WEIGHT_READ_TOKENS = 13
"""What reading the weights once costs, as a number of tokens. Both were measured on CPU cores."""

Bigram = tuple[int, int]
"""The last two tokens of a session."""
NO_BIGRAM: Bigram = (-1, -1)


@dataclass(slots=True)
class NextTokenCounts:
    """What followed a tail, and how often."""

    total: int = 0
    best: int = -1
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, token: int) -> None:
        self.total += 1
        self.counts[token] = count = self.counts.get(token, 0) + 1
        if count > self.counts.get(self.best, 0):
            self.best = token

    @property
    def share(self) -> float:
        """Of the most frequent token; a tail seen once is not certain yet."""
        return self.counts[self.best] / (self.total + 1)


def min_draft_probability(sessions: int, parameters: int) -> float:
    """The chance from which on a guess saves more than it costs.

    A pass costs about as much as `free` tokens, and one token more for each session: a token, sampled plainly, costs
    1 + free / sessions. A guess costs 1, and gives a token with its chance of being right.
    """
    free = PASS_OVERHEAD / parameters + WEIGHT_READ_TOKENS
    return 1 / (1 + free / sessions)


class NgramDrafter:
    def __init__(self, stop_ids: Collection[int]) -> None:
        self._stop_ids = stop_ids
        self._seen: dict[Bigram, NextTokenCounts] = {}

    def learn(self, tail: Bigram, token: int) -> None:
        seen = self._seen.get(tail)
        if seen is None:
            seen = self._seen[tail] = NextTokenCounts()
        seen.add(token)

    def guess(self, tail: Bigram, *, most: int, least: float) -> list[int]:
        """Tokens to try after the tail, each with at least that chance of being reached and right."""
        tokens: list[int] = []
        chance = 1.0
        while len(tokens) < most and (seen := self._seen.get(tail)) is not None:
            chance *= seen.share
            if chance < least:
                break
            tokens.append(seen.best)
            if seen.best in self._stop_ids:
                break
            tail = (tail[1], seen.best)
        return tokens

    def forget(self) -> None:
        self._seen.clear()
