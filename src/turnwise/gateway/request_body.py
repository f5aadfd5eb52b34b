"""Request bodies, bounded in size, time and depth, and limits of their contents.

They bound the time and the memory that one agent can take from others.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request

from turnwise.core.messages import ToolSpec
from turnwise.gateway.chat import ChatRequest, GatewayError, RequestError

MAX_BYTES = 64 * 2**20
"""Longest body. Far more than the longest context needs, images included."""
MAX_BUFFERED = 512 * 2**20
"""Bytes of all bodies that are being received and read."""
MAX_PUNCTUATION = 2_000_000
"""Commas and brackets in a body, those in texts included: parsing holds the interpreter, and takes memory for each."""
MAX_VALUES = 200_000
"""Lists and objects in a body: messages, content parts, tools, and the parts of their schemas."""
MAX_DEPTH = 100
"""Deepest nesting of lists and objects."""
READ_TIMEOUT_S = 60.0
"""Time in which a client must send its body."""


class BodyReader:
    """Reads the bodies of a server's requests. `max_bytes`: size of the longest one."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffered = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body, whose bytes count until the end of the block. Raises GatewayError.

        A body that is too long is received but not kept, so that the client gets the answer.
        """
        chunks = list[bytes]()
        try:
            size = await self._receive(request, chunks)
            if size > self._max_bytes:
                message = f"The body has {size} bytes, more than {self._max_bytes}: send less."
                raise GatewayError(413, "too_large", message)
            if sum(map(len, chunks)) < size:
                raise GatewayError(503, "overloaded", "The server is receiving too many long requests: try again.")
            yield b"".join(chunks)
        finally:
            self._buffered -= sum(map(len, chunks))

    async def _receive(self, request: Request, chunks: list[bytes]) -> int:
        """Append what is kept of the body to `chunks`; return the size of all of it."""
        size = 0
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= self._max_bytes and self._buffered + len(chunk) <= MAX_BUFFERED:
                        chunks.append(chunk)
                        self._buffered += len(chunk)
        except TimeoutError:
            raise GatewayError(
                408, "invalid_request", f"The body did not arrive within {READ_TIMEOUT_S:g} s: send it faster."
            ) from None
        except ClientDisconnect:
            raise RequestError("", "The client went away before it had sent the whole body.") from None
        return size


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises GatewayError."""
    punctuation = sum(map(body.count, (b",", b"[", b"{")))
    if punctuation > MAX_PUNCTUATION:
        message = f"The body has {punctuation:,} commas and brackets, more than {MAX_PUNCTUATION:,}: send less."
        raise GatewayError(413, "too_large", message)
    try:
        text = body.decode()
        parsed = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if "\\ud" in text.lower():  # escapes may leave unpaired surrogates, which no tokenizer encodes
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise RequestError("", "The body is not UTF-8.") from None
    except UnicodeEncodeError:
        raise RequestError("", "The body has an unpaired surrogate: remove it.") from None
    except (ValueError, RecursionError) as error:
        raise RequestError("", f"The body is not valid JSON: {str(error)[:80]}.") from None
    if not isinstance(parsed, dict):
        raise RequestError("", "The body must be a JSON object.")
    _check_values(parsed)
    return parsed


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _check_values(body: Mapping[str, Any]) -> None:
    """Raise GatewayError if lists and objects are too many or nested too deeply."""
    level: list[Any] = [body]
    count = 0
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _children(value)]
        count += len(level)
        if count > MAX_VALUES:
            raise GatewayError(
                413, "too_large", f"The body has more than {MAX_VALUES:,} lists and objects: send fewer."
            )
        if not level:
            return
    raise RequestError("", f"The body is nested deeper than {MAX_DEPTH} levels.")


def _children(value: Any) -> list[Any]:
    """Return the lists and objects in a list or object."""
    values = value.values() if isinstance(value, Mapping) else value
    return [child for child in values if isinstance(child, dict | list)]


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
