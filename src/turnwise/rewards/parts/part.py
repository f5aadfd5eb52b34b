"""Base of the built-in reward parts: whatever an answer makes them raise is the answer's failure."""

import logging
from abc import ABC, abstractmethod
from typing import ClassVar

from turnwise.config.section import Section
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.rewards.rubric import Answered

log = logging.getLogger(__name__)
NOT_THE_ANSWERS = (UserError, EnvironmentFailure, InfrastructureFailure, OSError)
"""A setting or a row, a sandbox, database or judge, and the machine: no answer brings these about."""


class BuiltInPart(Section, ABC):
    """A part of a rubric in our own code. The user's functions are called by `rewards.calling`, which stops the run."""

    worst: ClassVar[float] = 0.0
    """Score of an answer that `score` cannot read."""

    @abstractmethod
    async def score(self, answered: Answered) -> float:
        """Return the score of the answer."""

    async def __call__(self, answered: Answered) -> float:
        """The score. An answer that breaks it gets the worst: run again, a bad answer would be drawn anew."""
        try:
            return await self.score(answered)
        except NOT_THE_ANSWERS:
            raise
        except Exception as error:
            log.warning(
                "%s raised %s on the answer %.200r, which scores %g; please report it",
                type(self).__name__, type(error).__name__, answered.answer, self.worst, exc_info=error,
            )  # fmt: skip
            return self.worst
