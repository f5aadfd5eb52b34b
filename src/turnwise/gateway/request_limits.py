"""Limits of a request besides its bytes: they bound the time and the memory that one agent can take from others."""

import json
from collections.abc import Iterator

from turnwise.core.messages import ToolSpec
from turnwise.gateway.chat import ChatRequest, RequestError

MAX_MESSAGES = 10_000
MAX_IMAGES = 1_000
MAX_TOOLS = 1_000
MAX_TOOL_CHARS = 1_000_000
"""Characters of all tools: names, descriptions and schemas as JSON."""
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1_000
MAX_ID_CHARS = 1_000
"""Characters of the id of a call."""
MAX_SHORT_BYTES = 2**15
MAX_SHORT_MESSAGES = 64


def is_long_body(body: bytes) -> bool:
    """Return whether to read a body in a thread. One that continues a stored response may have many messages."""
    return len(body) > MAX_SHORT_BYTES or b'"previous_response_id"' in body


def is_long_request(request: ChatRequest, body: bytes) -> bool:
    """Return whether to render a request in a thread."""
    return len(body) > MAX_SHORT_BYTES or len(request.messages) > MAX_SHORT_MESSAGES


def check_request(request: ChatRequest) -> None:
    """Raise RequestError if the request is over a limit."""
    messages, tools = request.messages, request.tools
    counts = [
        ("messages", len(messages), MAX_MESSAGES, "messages"),
        ("messages", sum(len(message.images) for message in messages), MAX_IMAGES, "images"),
        ("tools", len(tools), MAX_TOOLS, "tools"),
        ("stop", len(request.stop), MAX_STOP_STRINGS, "stop strings"),
        ("stop", max(map(len, request.stop), default=0), MAX_STOP_CHARS, "characters in a stop string"),
        ("messages", max(map(len, _ids(request)), default=0), MAX_ID_CHARS, "characters in the id of a call"),
    ]
    for param, count, most, what in counts:
        check_count(param, count, most, what)
    check_count("tools", sum(map(_count_chars, tools)), MAX_TOOL_CHARS, "characters")


def check_count(param: str, count: int, most: int, what: str) -> None:
    """Raise RequestError if there are more than `most`."""
    if count > most:
        raise RequestError(param, f"{count:,} {what} are more than the limit of {most:,}: send fewer")


def _ids(request: ChatRequest) -> Iterator[str]:
    for message in request.messages:
        yield message.call_id
        yield from (call.call_id for call in message.tool_calls)


def _count_chars(tool: ToolSpec) -> int:
    return len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters, ensure_ascii=False))
