"""What an agent and an environment say to each other."""

from collections.abc import Mapping
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
    """A tool as the model is told of it; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


def tool_schema(spec: ToolSpec) -> dict[str, Any]:
    """A tool as chat templates and endpoints expect it."""
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `content` of an assistant message is the whole sampled text, thinking included."""

    role: Role
    content: str
    images: tuple[bytes, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Of a tool message: the call that it answers."""


def system(content: str) -> Message:
    return Message(role="system", content=content)


def user(content: str) -> Message:
    return Message(role="user", content=content)


def assistant(content: str) -> Message:
    return Message(role="assistant", content=content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A state as a grid of named cells; `record` draws it."""

    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    info: Mapping[str, str] = field(default_factory=dict)
