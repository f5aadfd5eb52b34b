"""Places in the scaffolding that show content, and what templates do to content before they show it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerFast

from turnwise.core.errors import UserError
from turnwise.core.messages import Message, Role

TRUSTED_ROLES = ("system", "assistant")
BLANK_LINE = "\n\n"
"""Between contents that share one message."""


class TemplateSlot(Protocol):
    """A place whose text is content: it never becomes a special token."""

    def text(self, messages: Sequence[Message]) -> str: ...

    def trusted(self, messages: Sequence[Message]) -> bool:
        """Whether marks such as <think> in it mean what they say: an agent's and a prompt's do, a tool's do not."""
        ...


TemplatePart = str | TemplateSlot
"""Scaffolding, which may hold special tokens, or a place for content, which may not."""


def unchanged(text: str) -> str:
    return text


def inside_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


CONTENT_CHANGES: tuple[Callable[[str], str], ...] = (
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
        return all(messages[member].role in TRUSTED_ROLES for member in self.members)


@dataclass(frozen=True, slots=True)
class CallIdSlot:
    """Shows which call a tool message answers."""

    member: int

    def text(self, messages: Sequence[Message]) -> str:
        return messages[self.member].call_id

    def trusted(self, messages: Sequence[Message]) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class LiteralSlot:
    """A word of a tool's description that looks like a special token and must not become one."""

    word: str

    def text(self, messages: Sequence[Message]) -> str:
        return self.word

    def trusted(self, messages: Sequence[Message]) -> bool:
        return False


HOW_TO_FIX = "give another with --model.chat_template FILE"


class RefusedError(Exception):
    """The template will not render these messages, or does not show all of them."""


class ChatTemplate:
    """Renders plain dictionaries. What it raises tells a template that cannot be used from one that says no."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if not tokenizer.chat_template:
            raise UserError("the tokenizer has no chat template: set --model.chat_template FILE (a Jinja file)")
        self._tokenizer = tokenizer

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), prompt: bool = True
    ) -> str:
        """The text of `messages`, with the generation prompt unless `prompt` is False."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=prompt, tokenize=False
            )
        except TemplateSyntaxError as error:
            raise UserError(
                f"the chat template is broken at line {error.lineno}: {error.message}; {HOW_TO_FIX}"
            ) from error
        except Exception as error:  # a template is a program: it may divide by zero, recurse or ask for all memory
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise RefusedError(" ".join(f"{kind}{error}".split())) from error
        return text


ConversationShape = tuple[tuple[Role, bool], ...]
"""Of each message: its role, and whether it has any content (templates treat empty contents in their own way)."""

FOLDED_ROLES: tuple[tuple[Role, ...], ...] = ((), ("system",), ("tool",), ("system", "tool"))
"""Which roles become user messages, for templates that refuse them; the faithful way first."""


def conversation_shape(messages: Sequence[Message]) -> ConversationShape:
    if any(message.images for message in messages):
        raise UserError("only text can be rendered: leave the images out of the messages")
    return tuple((message.role, bool(message.content)) for message in messages)


class Placeholders:
    """Unlikely words that stand for contents: plain letters and digits, so trimming and quoting leave them whole.

    Nine characters long, because some templates insist on that for the id of a call.
    """

    def __init__(self, avoid: str = "") -> None:
        self._stem = next(stem for number in count(700) if (stem := f"z{number:03d}") not in avoid)
        self.pattern = re.compile(rf"({self._stem}[a-z]\d{{3,}}z)")

    def __call__(self, kind: str, index: int = 0) -> str:
        return f"{self._stem}{kind}{index:03d}z"


@dataclass(frozen=True, slots=True)
class TemplateMessage:
    """One message as the template gets it, and the given messages that it holds."""

    role: Role
    members: tuple[int, ...]


def arrangements(roles: Sequence[Role]) -> Iterator[tuple[TemplateMessage, ...]]:
    """Ways to present messages, for templates that refuse a role or two user messages in a row."""
    return iter(dict.fromkeys(_arrange(roles, folded, merge) for folded in FOLDED_ROLES for merge in (False, True)))


def _arrange(roles: Sequence[Role], folded: Sequence[Role], merge: bool) -> tuple[TemplateMessage, ...]:
    """Roles in `folded` as user messages. A folded system message opens the user message behind it; with `merge`, all
    neighbouring user messages become one.
    """
    placed: list[TemplateMessage] = []
    for index, given in enumerate(roles):
        role: Role = "user" if given in folded else given
        joins = merge or (index > 0 and roles[index - 1] == "system")
        if joins and role == "user" and placed and placed[-1].role == "user":
            placed[-1] = replace(placed[-1], members=(*placed[-1].members, index))
        else:
            placed.append(TemplateMessage(role, (index,)))
    return tuple(placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSetting:
    """What stands around the messages in every rendering of them."""

    marks: Placeholders
    lead: Sequence[dict[str, Any]] = ()
    """Messages before, the last one showing the mark "a"; they are cut off again behind it."""
    resume_at: str = ""
    """Where the text goes on behind the lead: from the first of this."""
    tools: Sequence[dict[str, Any]] = ()
    quoted: Sequence[str] = ()
    """The words behind the marks "t" in `tools`."""


class TemplateProbe:
    """One arrangement of a shape on its way through the template."""

    def __init__(
        self,
        template: ChatTemplate,
        setting: ProbeSetting,
        shape: ConversationShape,
        placed: tuple[TemplateMessage, ...],
    ) -> None:
        self._template, self._setting, self._placed = template, setting, placed
        self._filled = [tuple(member for member in one.members if shape[member][1]) for one in placed]

    def parts(self) -> tuple[TemplatePart, ...]:
        """The scaffolding with its slots."""
        marks, quoted = self._setting.marks, self._setting.quoted
        contents = [marks("c", index) if members else "" for index, members in enumerate(self._filled)]
        text = self._render(contents)
        if missing := [one.role for one, mark in zip(self._placed, contents, strict=True) if mark not in text]:
            raise RefusedError(f"it does not show a {missing[0]} message")
        fillers: dict[str, TemplateSlot] = {marks("t", number): LiteralSlot(word) for number, word in enumerate(quoted)}
        for index, (one, members) in enumerate(zip(self._placed, self._filled, strict=True)):
            fillers[marks("i", index)] = CallIdSlot(one.members[0])
            if members:
                fillers[contents[index]] = ContentSlot(members, self._change(contents, index, text))
        return tuple(fillers.get(piece, piece) for piece in marks.pattern.split(text) if piece)

    def _change(self, contents: list[str], index: int, text: str) -> Callable[[str], str]:
        """What the template does to the content at `index`."""
        probes = [probe.format(contents[index]) for probe in PROBES]
        seen = [self._render([*contents[:index], probe, *contents[index + 1 :]]) for probe in probes]
        for change in CONTENT_CHANGES:
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


def after_lead(text: str, setting: ProbeSetting) -> str:
    _, found, rest = text.rpartition(setting.marks("a"))
    begin = rest.find(setting.resume_at)
    if not found or begin < 0:
        raise RefusedError("it does not show an assistant message")
    return rest[begin:]
