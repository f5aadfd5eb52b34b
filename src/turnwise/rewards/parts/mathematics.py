"""Answers in numbers and formulas, whichever way they are written."""

from typing import Annotated

from pydantic import Field

from turnwise.rewards.math_equality import equivalent
from turnwise.rewards.parts.part import BuiltInPart
from turnwise.rewards.parts.texts import looked_at, references
from turnwise.rewards.rubric import Answered


class SymbolicMath(BuiltInPart):
    """1 where the answer means the same as one of the accepted ones, else 0. Nothing of it is run as code."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""
    close: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Relative error that an answer written as a decimal may have; 0: none. Left out, it must be exact where the
    reference is (3, 3/4); of 1/3 or sqrt(2) it must have six digits or more and be off by less than 1 in the last."""

    async def score(self, answered: Answered) -> float:
        answer = looked_at(answered, "answer")
        return float(any(equivalent(answer, each, self.close) for each in references(answered.row, self.against)))
