"""Request bodies, bounded in size and time."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from turnwise.gateway.chat import GatewayError, RequestError

MAX_BYTES = 64 * 2**20
"""Longest body. Far more than the longest context needs, images included."""
READ_TIMEOUT_S = 60.0
"""Time in which a client must send its body."""
LARGE_BYTES = 2**18
"""Longer bodies are parsed in a thread."""


async def read_body(request: Request) -> bytes:
    """Return the body. One that is too long is read to its end but not kept, so that the client gets the answer."""
    chunks, size = list[bytes](), 0
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= MAX_BYTES:
                    chunks.append(chunk)
                else:
                    chunks.clear()
    except TimeoutError:
        raise GatewayError(408, "invalid_request", f"The body did not arrive within {READ_TIMEOUT_S:g} s.") from None
    except ClientDisconnect:
        raise RequestError("", "The client went away before it had sent the whole body.") from None
    if size > MAX_BYTES:
        raise GatewayError(413, "too_large", f"The body has {size} bytes; the limit is {MAX_BYTES}. Send less.")
    return b"".join(chunks)


async def read_json(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a body."""
    try:
        found = await asyncio.to_thread(json.loads, body) if len(body) > LARGE_BYTES else json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError("", f"The body is not valid JSON: {str(error)[:80]}") from None
    if not isinstance(found, dict):
        raise RequestError("", "The body must be a JSON object")
    return found
