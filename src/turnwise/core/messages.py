"""Messages between an agent and its environment: text and image parts, tool calls, tool specs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the model wrote. `arguments` is its text as sampled, never re-serialised."""

    name: str
    arguments: str
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """Description of a tool for the model; `parameters` is a JSON schema."""

    name: str
    """Name by which the model calls it."""
    description: str
    """Description of the tool for the model."""
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""


def tool_schema(spec: ToolSpec) -> dict[str, Any]:
    """Return the tool in the format of chat templates and OpenAI-compatible endpoints."""
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A text in a message."""

    text: str
    """The text itself."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImagePart:
    """An encoded image file, such as a PNG. Equal to every other part with the same bytes."""

    data: bytes = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, ImagePart) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)


ContentPart = TextPart | ImagePart


Content = str | ImagePart | Sequence[str | ImagePart]
"""A message's text, an image, or a list or tuple of both in order."""


def content_parts(content: Content) -> tuple[ContentPart, ...]:
    """Return the parts of a message with this content. Raises TypeError for anything that is neither text nor image."""
    items = content if isinstance(content, list | tuple) else [content]
    parts: list[ContentPart] = []
    for item in items:
        if not isinstance(item, str | ImagePart):
            found_in = f"a {type(content).__name__} with " if items is content else ""
            wrong = f"{found_in}a value of type {type(item).__name__}"
            raise TypeError(f"{wrong}: give text, a tw.Image made of the image, or a list of both")
        parts += text_parts(item) if isinstance(item, str) else [item]
    return tuple(parts)


def append_part(parts: list[str | ImagePart], part: str | ImagePart) -> None:
    """Append a text or an image. Texts that follow each other become one."""
    if isinstance(part, str) and parts and isinstance(parts[-1], str):
        parts[-1] += part
    else:
        parts.append(part)


def join_lines(lines: Sequence[Content]) -> Content:
    """Join contents by line breaks, leaving out empty ones. Texts that follow each other become one."""
    parts: list[str | ImagePart] = []
    for line in lines:
        if not line:
            continue
        items = [line] if isinstance(line, str | ImagePart) else [item for item in line if item]
        for item in ["\n", *items] if parts else items:
            append_part(parts, item)
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else parts


def text_parts(text: str) -> tuple[TextPart, ...]:
    """Return the parts of a message that is text only; none if the text is empty."""
    return (TextPart(text=text),) if text else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. The text of an assistant message is the whole sampled text, thinking included."""

    role: Role
    """system, user, assistant or tool."""
    parts: tuple[ContentPart, ...] = ()
    """Its texts and images, in order."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant message that could be parsed."""
    call_id: str = ""
    """Id of the call that a tool message answers."""

    @property
    def content(self) -> str:
        """The text of all parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """The images of all parts."""
        return tuple(part for part in self.parts if isinstance(part, ImagePart))


def system(content: Content) -> Message:
    """Return a system message: text, an image, or several of both."""
    return Message(role="system", parts=content_parts(content))


def user(content: Content) -> Message:
    """Return a user message: text, an image, or several of both."""
    return Message(role="user", parts=content_parts(content))


def assistant(content: str) -> Message:
    return Message(role="assistant", parts=text_parts(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A state as a grid of named cells, which `report` draws, or as HTML."""

    rows: tuple[tuple[str, ...], ...]
    """Names of the cells, row by row."""
    caption: str = ""
    """Line below the grid."""
    info: Mapping[str, str] = field(default_factory=dict)
    """Further facts of the state by name, such as a score."""
    html: str = ""
    """The state as HTML, which the viewer shows in a sandboxed frame in place of the cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A turn of a conversation to imitate: the messages before the answer, and the answer."""

    messages: tuple[Message, ...]
    answer: str
    tools: tuple[ToolSpec, ...] = ()
    """Tools of the first turn, as in `Observation`."""
    tools_in_words: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls of the answer, after its text, in the format of the chat template."""
    trained: bool = True
    """False for an answer that is only context."""
