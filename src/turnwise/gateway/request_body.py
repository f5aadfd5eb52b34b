"""Request bodies, bounded in size, time and depth."""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from turnwise.gateway.chat import GatewayError, RequestError

MAX_BYTES = 64 * 2**20
"""Longest body. Far more than the longest context needs, images included."""
MAX_BUFFERED = 512 * 2**20
"""Bytes of all bodies that are being received."""
MAX_DEPTH = 100
"""Deepest nesting of lists and objects."""
READ_TIMEOUT_S = 60.0
"""Time in which a client must send its body."""
LARGE_BYTES = 2**18
"""Longer bodies are parsed in a thread."""


class BodyReader:
    """Reads the bodies of a server's requests."""

    def __init__(self) -> None:
        self._buffered = 0

    async def read(self, request: Request) -> bytes:
        """Return the body. One that is too long is received but not kept, so that the client gets the answer.

        Raises GatewayError.
        """
        chunks = list[bytes]()
        kept = size = 0
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= MAX_BYTES and self._buffered + len(chunk) <= MAX_BUFFERED:
                        chunks.append(chunk)
                        kept += len(chunk)
                        self._buffered += len(chunk)
        except TimeoutError:
            raise GatewayError(
                408, "invalid_request", f"The body did not arrive within {READ_TIMEOUT_S:g} s: send it faster."
            ) from None
        except ClientDisconnect:
            raise RequestError("", "The client went away before it had sent the whole body.") from None
        finally:
            self._buffered -= kept
        if size > MAX_BYTES:
            raise GatewayError(413, "too_large", f"The body has {size} bytes, more than {MAX_BYTES}: send less.")
        if kept < size:
            raise GatewayError(503, "overloaded", "The gateway is receiving too many long requests: try again.")
        return b"".join(chunks)


async def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises RequestError."""
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(_read_json, body)
    return _read_json(body)


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if "\\ud" in text.lower():  # escapes may leave unpaired surrogates, which no tokenizer encodes
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise RequestError("", "The body is not UTF-8.") from None
    except UnicodeEncodeError:
        raise RequestError("", "The body has an unpaired surrogate: remove it.") from None
    except (ValueError, RecursionError) as error:
        raise RequestError("", f"The body is not valid JSON: {str(error)[:80]}.") from None
    if not isinstance(found, dict):
        raise RequestError("", "The body must be a JSON object.")
    if _is_deeper(found, MAX_DEPTH):
        raise RequestError("", f"The body is nested deeper than {MAX_DEPTH} levels.")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _is_deeper(value: Any, depth: int) -> bool:
    """Return whether lists and objects are nested in more than `depth` levels."""
    level = [value]
    for _ in range(depth):
        level = [child for each in level for child in _children(each)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    """Return the lists and objects in a list or object."""
    values = value.values() if isinstance(value, Mapping) else value
    return [each for each in values if isinstance(each, dict | list)]
