"""Chat templates, probed with placeholders to find where they show content and how they change it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerFast

from turnwise.core.errors import UserError
from turnwise.core.messages import Message, Role, TextPart
from turnwise.render.slots import (
    BLANK_LINE,
    CONTENT_CHANGES,
    PROBES,
    CallIdSlot,
    ContentChange,
    ContentSlot,
    ImageSlot,
    LiteralSlot,
    TemplatePart,
    TextRunSlot,
    probe_edges,
)

REWRITES = "it rewrites the text of a message"
HOW_TO_FIX = "set model.chat_template to the file of another"


class RefusedError(Exception):
    """The template does not accept these messages or does not show all of them."""


class ChatTemplate:
    """Renders message dictionaries. Raises UserError for a broken template, RefusedError for refused messages."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, image_marker: str | None = None) -> None:
        """`image_marker`: text that the template of a model that reads images writes in place of an image."""
        if not tokenizer.chat_template:
            raise UserError("The tokenizer has no chat template: set model.chat_template to a Jinja file.")
        self._tokenizer = tokenizer
        self.image_marker = image_marker
        self._lists_parts = False
        if image_marker is not None:
            self._lists_parts = not self._shows_plain_text()

    def _shows_plain_text(self) -> bool:
        """Return False for templates that read content as a list of parts only."""
        word = Placeholders()("c")
        try:
            return word in self.render([{"role": "user", "content": word}])
        except RefusedError:
            return False

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), prompt: bool = True
    ) -> str:
        """Return the text of `messages`, with the generation prompt unless `prompt` is False."""
        given = [_list_parts(message) for message in messages] if self._lists_parts else list(messages)
        try:
            text: str = self._tokenizer.apply_chat_template(
                given, tools=list(tools) or None, add_generation_prompt=prompt, tokenize=False
            )
        except TemplateSyntaxError as error:
            raise UserError(
                f"The chat template is broken at line {error.lineno}: {error.message}; {HOW_TO_FIX}"
            ) from error
        except Exception as error:  # a template is a program and can fail in any way
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise RefusedError(" ".join(f"{kind}{error}".split())) from error
        return text


def _list_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(message["content"], str):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


ConversationShape = tuple[tuple[Role, bool | str], ...]
"""(role, content) of each message: whether it has text, as templates treat empty content differently; or, of one with
images, its texts (t) and images (i) in order, such as "tit"."""

FOLDED_ROLES: tuple[tuple[Role, ...], ...] = ((), ("system",), ("tool",), ("system", "tool"))
"""Roles presented as user messages to templates that refuse them; the unchanged roles come first."""


def conversation_shape(messages: Sequence[Message]) -> ConversationShape:
    return tuple((message.role, _layout(message) or bool(message.content)) for message in messages)


def _layout(message: Message) -> str:
    """Return the texts and images of a message that has images; adjacent texts count once."""
    if not message.images:
        return ""
    letters = ["t" if isinstance(part, TextPart) else "i" for part in message.parts]
    return "".join(letter for n, letter in enumerate(letters) if letter == "i" or letters[n - 1 : n] != ["t"])


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
    arranged: list[tuple[Role, list[int]]] = []
    for index, original in enumerate(roles):
        role: Role = "user" if original in folded else original
        joins = merge or (index > 0 and roles[index - 1] == "system")
        if joins and role == "user" and arranged and arranged[-1][0] == "user":
            arranged[-1][1].append(index)
        else:
            arranged.append((role, [index]))
    return tuple(TemplateMessage(role, tuple(members)) for role, members in arranged)


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
        self._template, self._setting, self._shape, self._arranged = template, setting, shape, arranged
        self._texts: dict[str, ContentSlot | TextRunSlot] = {}
        """Slot of each placeholder."""
        self._images: list[ImageSlot] = []
        self._contents = [self._content(index, one.members) for index, one in enumerate(arranged)]

    def _content(self, index: int, members: Sequence[int]) -> str | list[dict[str, str]]:
        """Return a message's content as the template gets it: a placeholder, or with images a list of parts."""
        if any(isinstance(self._shape[member][1], str) for member in members):
            return self._content_parts(members)
        filled = tuple(member for member in members if self._shape[member][1])
        if not filled:
            return ""
        placeholder = self._setting.placeholders("c", index)
        self._texts[placeholder] = ContentSlot(filled)
        return placeholder

    def _content_parts(self, members: Sequence[int]) -> list[dict[str, str]]:
        parts: list[dict[str, str]] = []
        for member in members:
            layout = self._shape[member][1]
            if layout and parts:
                parts.append({"type": "text", "text": BLANK_LINE})
            counts = {"t": 0, "i": 0}
            for letter in layout if isinstance(layout, str) else "t" * layout:
                if letter == "i":
                    self._images.append(ImageSlot(member, counts["i"]))
                    parts.append({"type": "image"})
                else:
                    placeholder = self._setting.placeholders("p", len(self._texts))
                    self._texts[placeholder] = TextRunSlot(member, counts["t"])
                    parts.append({"type": "text", "text": placeholder})
                counts[letter] += 1
        return parts

    def parts(self) -> tuple[TemplatePart, ...]:
        """Return the scaffolding with its slots."""
        placeholders, quoted = self._setting.placeholders, self._setting.quoted
        text = self._render()
        if missing := [one.role for one, seen in zip(self._arranged, self._seen(text), strict=True) if not seen]:
            raise RefusedError(f"it does not show a {missing[0]} message")
        fillers: dict[str, TemplatePart] = {
            placeholders("t", number): LiteralSlot(word) for number, word in enumerate(quoted)
        }
        for index, one in enumerate(self._arranged):
            fillers[placeholders("i", index)] = CallIdSlot(one.members[0])
        changes = self._changes(text)
        for placeholder, slot in self._texts.items():
            fillers[placeholder] = replace(slot, change=changes[placeholder])
        parts = tuple(fillers.get(piece, piece) for piece in placeholders.pattern.split(text) if piece)
        return self._with_images(parts) if self._images else parts

    def _seen(self, text: str) -> list[bool]:
        """Return whether the output shows all text of each message."""
        words = set(self._setting.placeholders.pattern.findall(text)) | {""}
        if BLANK_LINE in text:
            words.add(BLANK_LINE)
        shown = []
        for content in self._contents:
            given = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            shown.append(words.issuperset(given))
        return shown

    def _with_images(self, parts: Sequence[TemplatePart]) -> tuple[TemplatePart, ...]:
        """Put the image slots where the template shows images."""
        marker, waiting = self._template.image_marker, iter(self._images)
        placed: list[TemplatePart] = []
        for part in parts:
            if not isinstance(part, str) or marker is None:
                placed.append(part)
                continue
            first, *rest = part.split(marker)
            placed += [first] if first else []
            for text in rest:
                slot = next(waiting, None)
                if slot is None:
                    raise RefusedError("it shows an image more often than once")
                placed += [slot, text] if text else [slot]
        if next(waiting, None) is not None:
            raise RefusedError("it does not show an image")
        return tuple(placed)

    def _changes(self, text: str) -> dict[str, ContentChange]:
        """Return the change that the template makes to the text of each placeholder in the output `text`.

        Placeholders that are not neighbours are probed together: four renderings for any number of messages.
        """
        pieces = self._setting.placeholders.pattern.split(text)
        changes: dict[str, ContentChange] = {}
        for words in _apart([word for word in pieces[1::2] if word in self._texts]):
            changes |= self._probe(pieces, words)
        return changes

    def _probe(self, pieces: Sequence[str], words: Sequence[str]) -> dict[str, ContentChange]:
        """Return the changes of some placeholders. `pieces`: the output without probes, split at all placeholders."""
        possible = {word: list(CONTENT_CHANGES) for word in words}
        lefts, rights = ["", *pieces[1::2]], [*pieces[1::2], ""]
        for probe in PROBES:
            edges = probe_edges(probe)
            shown = self._setting.placeholders.pattern.split(self._render({word: probe.format(word) for word in words}))
            if shown[1::2] != pieces[1::2]:
                raise RefusedError(REWRITES)
            for between, plain, left, right in zip(shown[::2], pieces[::2], lefts, rights, strict=True):
                if left not in possible and right not in possible and between != plain:
                    raise RefusedError(REWRITES)
                for word in possible.keys() & {left, right}:
                    possible[word] = [
                        change
                        for change in possible[word]
                        if between == f"{edges[change][1] * (left == word)}{plain}{edges[change][0] * (right == word)}"
                    ]
        if not all(possible.values()):
            raise RefusedError(REWRITES)
        return {word: candidates[0] for word, candidates in possible.items()}

    def _render(self, changed: Mapping[str, str] | None = None) -> str:
        """Render the messages, with other texts in place of some placeholders."""
        setting, changed = self._setting, changed or {}
        messages = list(setting.lead)
        for index, (one, content) in enumerate(zip(self._arranged, self._contents, strict=True)):
            if isinstance(content, str):
                given: Any = changed.get(content, content)
            else:
                given = [
                    part | {"text": changed.get(text, text)} if (text := part.get("text")) else part for part in content
                ]
            message = {"role": one.role, "content": given}
            messages.append(
                message | {"tool_call_id": setting.placeholders("i", index)} if one.role == "tool" else message
            )
        text = self._template.render(messages, tools=setting.tools)
        return after_lead(text, setting) if setting.lead else text


def _apart(words: Sequence[str]) -> list[list[str]]:
    """Group distinct words such that no two of a group follow each other."""
    neighbours: dict[str, set[str]] = {word: set() for word in words}
    for left, right in pairwise(words):
        if left != right:
            neighbours[left].add(right)
            neighbours[right].add(left)
    group_of: dict[str, int] = {}
    for word, near in neighbours.items():
        taken = {group_of.get(other) for other in near}
        group_of[word] = next(group for group in count() if group not in taken)
    return [[word for word in group_of if group_of[word] == group] for group in sorted(set(group_of.values()))]


def after_lead(text: str, setting: ProbeSetting) -> str:
    _, placeholders, rest = text.rpartition(setting.placeholders("a"))
    begin = rest.find(setting.resume_at)
    if not placeholders or begin < 0:
        raise RefusedError("it does not show an assistant message")
    return rest[begin:]
