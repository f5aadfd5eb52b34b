"""Chat templates, probed with placeholders to find where they show content and how they change it."""

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
"""Separator of contents that are merged into one message."""


class TemplateSlot(Protocol):
    """Position in the template's output that shows content, which never becomes a special token."""

    def text(self, messages: Sequence[Message]) -> str: ...

    def trusted(self, messages: Sequence[Message]) -> bool:
        """Return whether markup such as <think> may become tokens: in agents' texts and prompts, not in tools'."""
        ...


TemplatePart = str | TemplateSlot
"""Scaffolding text, which may contain special tokens, or a slot for content, which may not."""


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
"""Changes that templates make to content."""

PROBES = ('\n {}"é\\ \n', " \n{}<b>&'\n ")
"""Texts on which any two of CONTENT_CHANGES differ; {} is the placeholder."""


@dataclass(frozen=True, slots=True)
class ContentSlot:
    """Shows the contents of messages `members`, joined by a blank line and changed by `change`."""

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


HOW_TO_FIX = "use another with --model.chat_template FILE"


class RefusedError(Exception):
    """The template does not accept these messages or does not show all of them."""


class ChatTemplate:
    """Renders message dictionaries. Raises UserError for a broken template, RefusedError for refused messages."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if not tokenizer.chat_template:
            raise UserError("the tokenizer has no chat template: set --model.chat_template FILE (a Jinja file)")
        self._tokenizer = tokenizer

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), prompt: bool = True
    ) -> str:
        """Return the text of `messages`, with the generation prompt unless `prompt` is False."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=prompt, tokenize=False
            )
        except TemplateSyntaxError as error:
            raise UserError(
                f"the chat template is broken at line {error.lineno}: {error.message}; {HOW_TO_FIX}"
            ) from error
        except Exception as error:  # a template is a program and can fail in any way
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise RefusedError(" ".join(f"{kind}{error}".split())) from error
        return text


ConversationShape = tuple[tuple[Role, bool], ...]
"""(role, whether it has content) of each message; templates treat empty content differently."""

FOLDED_ROLES: tuple[tuple[Role, ...], ...] = ((), ("system",), ("tool",), ("system", "tool"))
"""Roles presented as user messages to templates that refuse them; the unchanged roles come first."""


def conversation_shape(messages: Sequence[Message]) -> ConversationShape:
    if any(message.images for message in messages):
        raise UserError("only text can be rendered: remove the images from the messages")
    return tuple((message.role, bool(message.content)) for message in messages)


class Placeholders:
    """Unlikely words in place of contents: letters and digits only, which trimming and quoting do not change.

    Nine characters long, because some templates require that of call ids.
    """

    def __init__(self, avoid: str = "") -> None:
        self._stem = next(stem for number in count(700) if (stem := f"z{number:03d}") not in avoid)
        self.pattern = re.compile(rf"({self._stem}[a-z]\d{{3,}}z)")

    def __call__(self, kind: str, index: int = 0) -> str:
        return f"{self._stem}{kind}{index:03d}z"


@dataclass(frozen=True, slots=True)
class TemplateMessage:
    """One message as the template gets it, and the indices of the original messages in it."""

    role: Role
    members: tuple[int, ...]


def arrangements(roles: Sequence[Role]) -> Iterator[tuple[TemplateMessage, ...]]:
    """Yield ways to present messages, for templates that refuse a role or consecutive user messages."""
    return iter(dict.fromkeys(_arrange(roles, folded, merge) for folded in FOLDED_ROLES for merge in (False, True)))


def _arrange(roles: Sequence[Role], folded: Sequence[Role], merge: bool) -> tuple[TemplateMessage, ...]:
    """Present roles in `folded` as user messages.

    A folded system message starts the user message after it; with `merge`, consecutive user messages become one.
    """
    arranged: list[TemplateMessage] = []
    for index, original in enumerate(roles):
        role: Role = "user" if original in folded else original
        joins = merge or (index > 0 and roles[index - 1] == "system")
        if joins and role == "user" and arranged and arranged[-1].role == "user":
            arranged[-1] = replace(arranged[-1], members=(*arranged[-1].members, index))
        else:
            arranged.append(TemplateMessage(role, (index,)))
    return tuple(arranged)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSetting:
    """Surroundings of the messages in every rendering."""

    placeholders: Placeholders
    lead: Sequence[dict[str, Any]] = ()
    """Messages before, removed from the output after the placeholder "a" in the last one."""
    resume_at: str = ""
    """Text after the lead at which the output resumes."""
    tools: Sequence[dict[str, Any]] = ()
    quoted: Sequence[str] = ()
    """Original texts of the placeholders "t" in `tools`."""


class TemplateProbe:
    """Renders one arrangement of a conversation shape with placeholders."""

    def __init__(
        self,
        template: ChatTemplate,
        setting: ProbeSetting,
        shape: ConversationShape,
        arranged: tuple[TemplateMessage, ...],
    ) -> None:
        self._template, self._setting, self._arranged = template, setting, arranged
        self._filled = [tuple(member for member in one.members if shape[member][1]) for one in arranged]

    def parts(self) -> tuple[TemplatePart, ...]:
        """Return the scaffolding with its slots."""
        placeholders, quoted = self._setting.placeholders, self._setting.quoted
        contents = [placeholders("c", index) if members else "" for index, members in enumerate(self._filled)]
        text = self._render(contents)
        if missing := [
            one.role for one, placeholder in zip(self._arranged, contents, strict=True) if placeholder not in text
        ]:
            raise RefusedError(f"it does not show a {missing[0]} message")
        fillers: dict[str, TemplateSlot] = {
            placeholders("t", number): LiteralSlot(word) for number, word in enumerate(quoted)
        }
        for index, (one, members) in enumerate(zip(self._arranged, self._filled, strict=True)):
            fillers[placeholders("i", index)] = CallIdSlot(one.members[0])
            if members:
                fillers[contents[index]] = ContentSlot(members, self._change(contents, index, text))
        return tuple(fillers.get(piece, piece) for piece in placeholders.pattern.split(text) if piece)

    def _change(self, contents: list[str], index: int, text: str) -> Callable[[str], str]:
        """Return the change that the template makes to the content at `index`."""
        probes = [probe.format(contents[index]) for probe in PROBES]
        rendered = [self._render([*contents[:index], probe, *contents[index + 1 :]]) for probe in probes]
        for change in CONTENT_CHANGES:
            if rendered == [text.replace(contents[index], change(probe)) for probe in probes]:
                return change
        raise RefusedError(f"it rewrites the text of a {self._arranged[index].role} message")

    def _render(self, contents: Sequence[str]) -> str:
        setting = self._setting
        messages = list(setting.lead)
        for index, (one, content) in enumerate(zip(self._arranged, contents, strict=True)):
            message = {"role": one.role, "content": content}
            messages.append(
                message | {"tool_call_id": setting.placeholders("i", index)} if one.role == "tool" else message
            )
        text = self._template.render(messages, tools=setting.tools)
        return after_lead(text, setting) if setting.lead else text


def after_lead(text: str, setting: ProbeSetting) -> str:
    _, found, rest = text.rpartition(setting.placeholders("a"))
    begin = rest.find(setting.resume_at)
    if not found or begin < 0:
        raise RefusedError("it does not show an assistant message")
    return rest[begin:]
