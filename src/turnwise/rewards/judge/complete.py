"""The seam to the model that judges: an endpoint, or one that is loaded here."""

import math
from collections.abc import Sequence
from typing import Protocol

from turnwise.core.messages import Message

CHARS_PER_TOKEN = 2
"""Where nobody counts them: few, so that a budget holds in languages of short tokens too."""
SCAFFOLD = 16
"""Tokens that a chat template adds to a message, about."""


class Complete(Protocol):
    @property
    def identity(self) -> tuple[str, str]:
        """Where the model is, and which it is: what an answer that is kept belongs to."""
        ...

    async def __call__(self, messages: Sequence[Message]) -> str:
        """What the model says; its cost is counted where it is caused. Raises UserError or InfrastructureFailure."""
        ...


def estimated_tokens(messages: Sequence[Message]) -> int:
    return sum(SCAFFOLD + math.ceil(len(message.content.encode()) / CHARS_PER_TOKEN) for message in messages)
