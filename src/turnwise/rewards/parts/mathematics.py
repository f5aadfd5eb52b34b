"""Answers in numbers and formulas, whichever way they are written."""

from typing import Annotated

from pydantic import Field

from turnwise.config.section import Section
from turnwise.rewards.math_equality import CLOSE, equivalent
from turnwise.rewards.parts.texts import looked_at, references
from turnwise.rewards.rubric import Answered


class SymbolicMath(Section):
    """1 where the answer means the same as one of the accepted ones, else 0. Nothing of it is run as code."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""
    close: Annotated[float, Field(ge=0, lt=1)] = CLOSE
    """How near an answer that is written as a decimal must come, of its size; 0: exactly."""

    async def __call__(self, answered: Answered) -> float:
        answer = looked_at(answered, "answer")
        return float(any(equivalent(answer, each, self.close) for each in references(answered.row, self.against)))
