"""How an answer is said: at what length, and how often the same. Costs, from 0 down to -1."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from turnwise.config.section import Positive
from turnwise.rewards.parts.part import BuiltInPart
from turnwise.rewards.parts.texts import Of, looked_at
from turnwise.rewards.rubric import Answered

Unit = Literal["words", "characters"]


def pieces(text: str, unit: Unit) -> Sequence[str]:
    return text.split() if unit == "words" else text


class Length(BuiltInPart):
    """0 up to `soft`, then evenly down to -1 at `hard` (the overlong cost of DAPO, arXiv 2503.14476)."""

    worst = -1.0
    soft: Annotated[int, Field(ge=0)]
    """Up to here length costs nothing."""
    hard: Positive
    """From here on it costs 1."""
    unit: Unit = "words"
    of: Of = "said"
    """What is measured: the answer, or all that the agent said."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError("soft must be less than hard")
        return self

    async def score(self, answered: Answered) -> float:
        over = len(pieces(looked_at(answered, self.of), self.unit)) - self.soft
        return 0.0 - min(1.0, max(0.0, over / (self.hard - self.soft)))


class Repetition(BuiltInPart):
    """Minus the share of runs of `n` words that were said before, 0 to -1."""

    worst = -1.0
    n: Annotated[int, Field(ge=1, le=32)] = 4
    """How many in a row make a run."""
    unit: Unit = "words"
    """Characters for languages without spaces; `n` then wants to be 10 or more."""
    of: Of = "said"
    """What is looked at: the answer, or all that the agent said."""

    async def score(self, answered: Answered) -> float:
        said = pieces(looked_at(answered, self.of), self.unit)
        hashable = str if self.unit == "characters" else tuple
        runs = [hashable(said[start : start + self.n]) for start in range(len(said) - self.n + 1)]
        return 0.0 - (1 - len(set(runs)) / len(runs)) if runs else 0.0
