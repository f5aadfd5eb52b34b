"""Slots of a rendered chat template: where it shows texts and images, and how it changes texts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from turnwise.core.messages import Message, TextPart

TRUSTED_ROLES = ("system", "assistant")
BLANK_LINE = "\n\n"
"""Separator of contents that are merged into one message."""


class TemplateSlot(Protocol):
    """Position in the template's output that shows content, which never becomes a special token."""

    def text(self, messages: Sequence[Message]) -> str: ...

    def trusted(self, messages: Sequence[Message]) -> bool:
        """Return whether markup such as <think> may become tokens: in agents' texts and prompts, not in tools'."""
        ...


def unchanged(text: str) -> str:
    return text


def inside_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


ContentChange = Callable[[str], str]

CONTENT_CHANGES: tuple[ContentChange, ...] = (
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
"""Changes that templates make to content."""

PROBES = ('\n {}"é\\ \n', " \n{}<b>&'\n ")
"""Texts on which any two of CONTENT_CHANGES differ; {} is the placeholder."""


def probe_edges(probe: str) -> dict[ContentChange, tuple[str, str]]:
    """Return what each change leaves of a probe before and after its placeholder, which no change touches."""
    edges = {change: change(probe.format("word")).partition("word") for change in CONTENT_CHANGES}
    return {change: (before, after) for change, (before, _, after) in edges.items()}


@dataclass(frozen=True, slots=True)
class ContentSlot:
    """Shows the contents of messages `members`, joined by a blank line and changed by `change`."""

    members: tuple[int, ...]
    change: ContentChange = unchanged

    def text(self, messages: Sequence[Message]) -> str:
        if len(self.members) == 1:
            return self.change(messages[self.members[0]].content)
        return self.change(BLANK_LINE.join(messages[member].content for member in self.members))

    def trusted(self, messages: Sequence[Message]) -> bool:
        return all(messages[member].role in TRUSTED_ROLES for member in self.members)


@dataclass(frozen=True, slots=True)
class CallIdSlot:
    """Shows the id of the call that a tool message answers."""

    member: int

    def text(self, messages: Sequence[Message]) -> str:
        return messages[self.member].call_id

    def trusted(self, messages: Sequence[Message]) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class LiteralSlot:
    """Text in a tool's description that looks like a special token and must not become one."""

    word: str

    def text(self, messages: Sequence[Message]) -> str:
        return self.word

    def trusted(self, messages: Sequence[Message]) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class TextRunSlot:
    """Shows the text number `run` of a message with images, changed by `change`."""

    member: int
    run: int
    change: ContentChange = unchanged

    def text(self, messages: Sequence[Message]) -> str:
        return self.change(text_runs(messages[self.member])[self.run])

    def trusted(self, messages: Sequence[Message]) -> bool:
        return messages[self.member].role in TRUSTED_ROLES


@dataclass(frozen=True, slots=True)
class ImageSlot:
    """Position in the template's output of image number `index` of a message."""

    member: int
    index: int

    def data(self, messages: Sequence[Message]) -> bytes:
        return messages[self.member].images[self.index].data


TemplatePart = str | TemplateSlot | ImageSlot
"""Scaffolding text, which may contain special tokens, a slot for text, which may not, or one for an image."""


def text_runs(message: Message) -> list[str]:
    """Return the texts between the images of a message; adjacent ones are joined."""
    runs: list[str] = []
    for is_text, group in groupby(message.parts, key=lambda part: isinstance(part, TextPart)):
        if is_text:
            runs.append("".join(part.text for part in group if isinstance(part, TextPart)))
    return runs
