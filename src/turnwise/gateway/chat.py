"""Requests, replies and errors that every dialect is translated to and from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from turnwise.core.messages import Message, ToolSpec
from turnwise.text.truncation import shorten

ErrorKind = Literal[
    "invalid_request",
    "context_length",
    "authentication",
    "not_found",
    "too_large",
    "conflict",
    "overloaded",
    "internal",
]


class GatewayError(Exception):
    """An error that the caller gets in its provider's own format."""

    def __init__(self, status: int, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


class RequestError(GatewayError):
    """The request is malformed. `param` names the field, such as messages.0.content."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(400, "invalid_request", f"{param}: {message}" if param else message)
        self.param = param


def episode_over() -> GatewayError:
    """Return the error of calls after the end of their episode."""
    return GatewayError(409, "conflict", "The episode is over: its API key is no longer valid.")


class ContextOverflow(GatewayError):
    """The conversation does not fit into the context."""

    def __init__(self, max_tokens: int, tokens: int | None) -> None:
        size = "many more" if tokens is None else str(tokens)
        super().__init__(
            400,
            "context_length",
            f"This model's maximum context length is {max_tokens} tokens (rollout.max_tokens), but the messages have "
            f"{size}. Shorten the conversation or raise the setting.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRule:
    """Required form of a reply: JSON that matches the schema, or a call of one of the tools."""

    setting: str
    """Name of the setting that demands it, for errors."""
    schema: Mapping[str, Any] | None
    """None: the reply must be a call."""
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request. Its sampling settings are wishes: the gateway records them and enforces its own limits."""

    messages: tuple[Message, ...]
    """The conversation; arguments of tool calls are text, verbatim."""
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    """A lower value than the gateway's own is honoured."""
    temperature: float | None = None
    """Recorded, not honoured."""
    stop: tuple[str, ...] = ()
    """Stop strings, honoured in addition to the gateway's own. The reply ends before the first."""
    rule: ReplyRule | None = None
    """None: the model may write anything."""
    n: int = 1
    """Number of replies."""
    stream: bool = False
    shows_thinking: bool = True
    """Whether the reply has the thinking. What was not shown cannot be sent back, so it stays in the context."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings that only the dialect itself reads when it writes the reply."""
    wishes: Mapping[str, Any] = field(default_factory=dict)
    """The caller's model and sampling settings as sent, for the record."""
    digest: bytes = b""
    """Digest of the path and the body, which are equal in a retry."""
    is_long: bool = False
    """Whether its conversation is read and rendered in a thread."""


ReplyStop = Literal["stop", "tool_calls", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """One choice of a reply."""

    message: Message
    """Text without thinking and without the markup of calls; the calls have ids of their own."""
    thinking: str
    stop: ReplyStop
    stop_string: str = ""
    """Stop string that ended it; empty if none did."""
    prompt_tokens: int
    sampled_tokens: int
    policy_version: int | None
    """Version of the weights that sampled the last token; None if unknown."""
    call: str
    """Id of the recorded call."""


MAX_WISH_CHARS = 2000
"""Longest setting to record, in characters of JSON."""


def read_wishes(body: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the caller's settings for the record. Long ones, such as a schema of the reply, are cut."""
    return {name: _shorten_value(body[name]) for name in names if body.get(name) is not None}


def _shorten_value(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= MAX_WISH_CHARS else shorten(text, MAX_WISH_CHARS)


class ChatDialect(Protocol):
    """A provider's API. Each dialect is a module with these functions."""

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        """Read a request. Raises RequestError."""
        ...

    def response(self, request: ChatRequest, replies: Sequence[ChatReply], model: str) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""
        ...

    def events(self, request: ChatRequest, replies: Sequence[ChatReply], model: str) -> Iterator[bytes]:
        """Yield the server-sent events of a finished reply."""
        ...

    def error(self, status: int, kind: ErrorKind, message: str) -> dict[str, Any]:
        """Return the body of an error."""
        ...

    def error_event(self, status: int, kind: ErrorKind, message: str) -> bytes:
        """Return an error as a server-sent event, for a stream that has begun."""
        ...


class CountingDialect(ChatDialect, Protocol):
    """A provider's API that also counts the tokens of requests."""

    def token_count(self, tokens: int) -> dict[str, Any]:
        """Return the body of a reply to a request for the count."""
        ...
