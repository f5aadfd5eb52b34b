"""One way to put messages through a chat template, with marks in the place of contents."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.messages import Message, Role
from turnwise.render.slots import CHANGES, PROBES, CallIdSlot, ContentSlot, Filler, Part, Quoted
from turnwise.render.template import ChatTemplate, RefusedError

Shape = tuple[tuple[Role, bool], ...]
"""Of each message: its role, and whether it has any content (templates treat empty contents in their own way)."""

FOLDED: tuple[tuple[Role, ...], ...] = ((), ("system",), ("tool",), ("system", "tool"))
"""Which roles become user messages, for templates that refuse them; the faithful way first."""


def shape_of(messages: Sequence[Message]) -> Shape:
    if any(message.images for message in messages):
        raise UserError("only text can be rendered: leave the images out of the messages")
    return tuple((message.role, bool(message.content)) for message in messages)


class Marks:
    """Unlikely words that stand for contents: plain letters and digits, so trimming and quoting leave them whole.

    Nine characters long, because some templates insist on that for the id of a call.
    """

    def __init__(self, avoid: str = "") -> None:
        self._stem = next(stem for number in count(700) if (stem := f"z{number:03d}") not in avoid)
        self.pattern = re.compile(rf"({self._stem}[a-z]\d{{3,}}z)")

    def __call__(self, kind: str, index: int = 0) -> str:
        return f"{self._stem}{kind}{index:03d}z"


@dataclass(frozen=True, slots=True)
class Placed:
    """One message as the template gets it, and the given messages that it holds."""

    role: Role
    members: tuple[int, ...]


def arrangements(roles: Sequence[Role]) -> Iterator[tuple[Placed, ...]]:
    """Ways to present messages, for templates that refuse a role or two user messages in a row."""
    return iter(dict.fromkeys(_arranged(roles, folded, merge) for folded in FOLDED for merge in (False, True)))


def _arranged(roles: Sequence[Role], folded: Sequence[Role], merge: bool) -> tuple[Placed, ...]:
    """Roles in `folded` as user messages. A folded system message opens the user message behind it; with `merge`, all
    neighbouring user messages become one.
    """
    placed: list[Placed] = []
    for index, given in enumerate(roles):
        role: Role = "user" if given in folded else given
        joins = merge or (index > 0 and roles[index - 1] == "system")
        if joins and role == "user" and placed and placed[-1].role == "user":
            placed[-1] = replace(placed[-1], members=(*placed[-1].members, index))
        else:
            placed.append(Placed(role, (index,)))
    return tuple(placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What stands around the messages in every rendering of them."""

    marks: Marks
    lead: Sequence[dict[str, Any]] = ()
    """Messages before, the last one showing the mark "a"; they are cut off again behind it."""
    resume_at: str = ""
    """Where the text goes on behind the lead: from the first of this."""
    tools: Sequence[dict[str, Any]] = ()
    quoted: Sequence[str] = ()
    """The words behind the marks "t" in `tools`."""


class Sketch:
    """One arrangement of a shape on its way through the template."""

    def __init__(self, template: ChatTemplate, setting: Setting, shape: Shape, placed: tuple[Placed, ...]) -> None:
        self._template, self._setting, self._placed = template, setting, placed
        self._filled = [tuple(member for member in one.members if shape[member][1]) for one in placed]

    def parts(self) -> tuple[Part, ...]:
        """The scaffolding with its slots."""
        marks, quoted = self._setting.marks, self._setting.quoted
        contents = [marks("c", index) if members else "" for index, members in enumerate(self._filled)]
        text = self._render(contents)
        if missing := [one.role for one, mark in zip(self._placed, contents, strict=True) if mark not in text]:
            raise RefusedError(f"it does not show a {missing[0]} message")
        fillers: dict[str, Filler] = {marks("t", number): Quoted(word) for number, word in enumerate(quoted)}
        for index, (one, members) in enumerate(zip(self._placed, self._filled, strict=True)):
            fillers[marks("i", index)] = CallIdSlot(one.members[0])
            if members:
                fillers[contents[index]] = ContentSlot(members, self._change(contents, index, text))
        return tuple(fillers.get(piece, piece) for piece in marks.pattern.split(text) if piece)

    def _change(self, contents: list[str], index: int, text: str) -> Callable[[str], str]:
        """What the template does to the content at `index`."""
        probes = [probe.format(contents[index]) for probe in PROBES]
        seen = [self._render([*contents[:index], probe, *contents[index + 1 :]]) for probe in probes]
        for change in CHANGES:
            if seen == [text.replace(contents[index], change(probe)) for probe in probes]:
                return change
        raise RefusedError(f"it rewrites the text of a {self._placed[index].role} message")

    def _render(self, contents: Sequence[str]) -> str:
        setting = self._setting
        messages = list(setting.lead)
        for index, (one, content) in enumerate(zip(self._placed, contents, strict=True)):
            message = {"role": one.role, "content": content}
            messages.append(message | {"tool_call_id": setting.marks("i", index)} if one.role == "tool" else message)
        text = self._template.render(messages, tools=setting.tools)
        return after_lead(text, setting) if setting.lead else text


def after_lead(text: str, setting: Setting) -> str:
    _, found, rest = text.rpartition(setting.marks("a"))
    begin = rest.find(setting.resume_at)
    if not found or begin < 0:
        raise RefusedError("it does not show an assistant message")
    return rest[begin:]
