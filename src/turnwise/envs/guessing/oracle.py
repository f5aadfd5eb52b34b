"""Who answers: a table of facts here; anything else that can answer a question about a secret would do."""

from dataclasses import dataclass
from typing import Protocol

UNKNOWN = "I do not know."


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question as it was understood, and its answer: a line of what the player knows."""

    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question} {self.answer}"


NOT_UNDERSTOOD = Exchange("?", UNKNOWN)


class Oracle(Protocol):
    def answer(self, secret: str, text: str) -> Exchange:
        """What it says of this secret. `text` is a model's and may be anything."""
        ...
