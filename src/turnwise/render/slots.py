"""Places in the scaffolding that show content, and what templates do to content before they show it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from turnwise.core.messages import Message

TRUSTED = ("system", "assistant")
BLANK_LINE = "\n\n"
"""Between contents that share one message."""


class Filler(Protocol):
    """A place whose text is content: it never becomes a special token."""

    def text(self, messages: Sequence[Message]) -> str: ...

    def trusted(self, messages: Sequence[Message]) -> bool:
        """Whether marks such as <think> in it mean what they say: an agent's and a prompt's do, a tool's do not."""
        ...


Part = str | Filler
"""Scaffolding, which may hold special tokens, or a place for content, which may not."""


def unchanged(text: str) -> str:
    return text


def inside_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


CHANGES: tuple[Callable[[str], str], ...] = (
    unchanged,
    str.strip,
    str.lstrip,
    str.rstrip,
    lambda text: text.strip("\n"),
    lambda text: text.lstrip("\n"),
    lambda text: text.rstrip("\n"),
    inside_json,
    lambda text: inside_json(text.strip()),
)
"""What templates do to a content before they show it."""

PROBES = ('\n {}"é\\ \n', " \n{}<b>&'\n ")
"""Texts that every two of CHANGES treat differently; {} is the slot's mark."""


@dataclass(frozen=True, slots=True)
class ContentSlot:
    """Shows the contents of `members`, joined by a blank line, as `change` leaves them."""

    members: tuple[int, ...]
    change: Callable[[str], str] = unchanged

    def text(self, messages: Sequence[Message]) -> str:
        if len(self.members) == 1:
            return self.change(messages[self.members[0]].content)
        return self.change(BLANK_LINE.join(messages[member].content for member in self.members))

    def trusted(self, messages: Sequence[Message]) -> bool:
        return all(messages[member].role in TRUSTED for member in self.members)


@dataclass(frozen=True, slots=True)
class CallIdSlot:
    """Shows which call a tool message answers."""

    member: int

    def text(self, messages: Sequence[Message]) -> str:
        return messages[self.member].call_id

    def trusted(self, messages: Sequence[Message]) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Quoted:
    """A word of a tool's description that looks like a special token and must not become one."""

    word: str

    def text(self, messages: Sequence[Message]) -> str:
        return self.word

    def trusted(self, messages: Sequence[Message]) -> bool:
        return False
