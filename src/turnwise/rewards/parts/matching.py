"""Answers in words, against those that a row accepts."""

from typing import Annotated

from pydantic import Field

from turnwise.rewards.parts.part import BuiltInPart
from turnwise.rewards.parts.texts import looked_at, references
from turnwise.rewards.rubric import Answered
from turnwise.rewards.words import exact_match, graded_f1


class ExactMatch(BuiltInPart):
    """1 where the answer is one of the accepted ones, else 0."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""

    async def score(self, answered: Answered) -> float:
        answer = looked_at(answered, "answer")
        return max(exact_match(answer, each) for each in references(answered.row, self.against))


class F1(BuiltInPart):
    """The share of words that the answer has in common with the nearest accepted one, 0 to 1."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""
    at_least: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A smaller share counts as none: single words are soon guessed."""
    precision: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """More than this share of the answer's own words must be right: a list of guesses is worth nothing."""

    async def score(self, answered: Answered) -> float:
        answer = looked_at(answered, "answer")
        return max(
            graded_f1(answer, each, self.at_least, self.precision) for each in references(answered.row, self.against)
        )
