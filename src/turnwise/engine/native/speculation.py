"""Speculative decoding: draft the next tokens of a session, so that one pass can yield several.

Half of an agent's turn is fixed text: tags, separators, the form of a call. The drafter predicts what followed the same
two tokens before, in any session. Drafts never change what is sampled: a pass also runs the draft tokens, each position
samples its token with the random number that it would have had anyway, and tokens after a wrong draft are discarded.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

MAX_DRAFT_TOKENS = 3
"""Rows are padded to the longest, so every row pays for a long draft."""
PASS_OVERHEAD = 75e6
"""Fixed cost of a pass, as the number of parameters of a model for which one more token would cost as much."""
WEIGHT_READ_TOKENS = 13
"""Cost of reading the weights once, in tokens. Both were measured on CPU cores."""

Bigram = tuple[int, int]
"""The last two tokens of a session."""
NO_BIGRAM: Bigram = (-1, -1)


@dataclass(slots=True)
class NextTokenCounts:
    """Counts of the tokens that followed a bigram."""

    total: int = 0
    best: int = -1
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, token: int) -> None:
        self.total += 1
        self.counts[token] = count = self.counts.get(token, 0) + 1
        if count > self.counts.get(self.best, 0):
            self.best = token

    @property
    def probability(self) -> float:
        """Estimated probability of the most frequent token; below 1 even if no other token was counted."""
        return self.counts[self.best] / (self.total + 1)


def min_draft_probability(sessions: int, parameters: int) -> float:
    """Return the probability from which on a draft token saves more than it costs.

    A pass costs about as much as `fixed` tokens, plus one per session, so a token sampled without a draft costs
    1 + fixed / sessions. A draft token costs 1 and yields a token with its probability of being right.
    """
    fixed = PASS_OVERHEAD / parameters + WEIGHT_READ_TOKENS
    return 1 / (1 + fixed / sessions)


class NgramDrafter:
    def __init__(self, stop_ids: Collection[int]) -> None:
        self._stop_ids = stop_ids
        self._counts: dict[Bigram, NextTokenCounts] = {}

    def observe(self, bigram: Bigram, token: int) -> None:
        counts = self._counts.get(bigram)
        if counts is None:
            counts = self._counts[bigram] = NextTokenCounts()
        counts.add(token)

    def draft(self, bigram: Bigram, *, max_tokens: int, min_probability: float) -> list[int]:
        """Return tokens to try after the bigram, while the draft is right with at least this probability."""
        tokens: list[int] = []
        probability = 1.0
        while len(tokens) < max_tokens and (counts := self._counts.get(bigram)) is not None:
            probability *= counts.probability
            if probability < min_probability:
                break
            tokens.append(counts.best)
            if counts.best in self._stop_ids:
                break
            bigram = (bigram[1], counts.best)
        return tokens

    def reset(self) -> None:
        self._counts.clear()
