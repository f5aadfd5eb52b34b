"""Answers of a form: a regular expression that they match."""

import asyncio
import logging
from typing import Annotated, Any, Literal, Self

import regex  # type: ignore[import-untyped]
from pydantic import Field, model_validator

from turnwise.rewards.parts.part import BuiltInPart
from turnwise.rewards.parts.texts import Of, looked_at
from turnwise.rewards.rubric import Answered

log = logging.getLogger(__name__)


class Regex(BuiltInPart):
    """1 where the pattern matches, else 0.

    The text is the agent's, which may be one on which a pattern of many ways takes hours: it gets `timeout_s` in a
    thread beside the others, and then it counts as no match.
    """

    pattern: str
    """As Python's `re` takes it."""
    match: Literal["full", "search"] = "search"
    """The whole text, or anywhere in it."""
    of: Of = "answer"
    """What is looked at: the answer, or all that the agent said."""
    ignore_case: bool = False
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """Of one text."""

    @model_validator(mode="after")
    def _readable(self) -> Self:
        try:
            self._compiled()
        except regex.error as error:
            raise ValueError(f"the pattern is no regular expression ({error}): mend it") from error
        return self

    def _compiled(self) -> Any:
        return regex.compile(self.pattern, regex.IGNORECASE if self.ignore_case else 0)

    async def score(self, answered: Answered) -> float:
        return float(await asyncio.to_thread(self._matches, looked_at(answered, self.of)))

    def _matches(self, text: str) -> bool:
        compiled = self._compiled()  # the library keeps what it compiled
        find = compiled.fullmatch if self.match == "full" else compiled.search
        try:
            return find(text, timeout=self.timeout_s, concurrent=True) is not None
        except TimeoutError:
            log.warning("the pattern of a reward takes more than %g s on an answer, which counts as no match: "
                        "nested repetition is the usual reason", self.timeout_s)  # fmt: skip
            return False
