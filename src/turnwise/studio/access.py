"""Guard of the studio's routes: requests that write come from the studio's own page, and are small JSON.

The viewer's access check comes before it: the host name, the token, and Sec-Fetch-Site. A page on another port of this
machine is of the same site and would be sent the cookie of the token, so writing also needs the right Origin.
"""

import asyncio
from urllib.parse import urlsplit

from fastapi import Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnwise.network.http_headers import bearer_token
from turnwise.viewer.json_io import error_response

READING = ("GET", "HEAD")
"""Methods that change nothing."""
MAX_BODY = 1 << 20
READ_TIMEOUT_S = 30.0


class WriteGuard:
    """Passes on only reading requests, and writing ones that the studio's own page or a program with the token sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        refused = check_sender(Headers(scope=scope)) or await self._pass_on(scope, receive, send)
        if refused is not None:
            await refused(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Read the body and call the application with it; return the response if the body is refused."""
        try:
            body = await read_body(Request(scope, receive))
        except BodyTooLong:
            return error_response(413, f"The request has more than {MAX_BYTES_TEXT}: send less")
        except TimeoutError:
            return error_response(408, f"The request did not arrive within {READ_TIMEOUT_S:g} s: send it again")
        except ClientDisconnect:
            return error_response(400, "The request ended early: send it again")
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)
        return None


MAX_BYTES_TEXT = f"{MAX_BODY // 1024} kB"


class BodyTooLong(Exception):
    pass


async def read_body(request: Request) -> bytes:
    """Read the body. What is beyond the limit is received and dropped, so that the client gets the response."""
    kept, size = list[bytes](), 0
    async with asyncio.timeout(READ_TIMEOUT_S):
        async for chunk in request.stream():
            size += len(chunk)
            if size <= MAX_BODY:
                kept.append(chunk)
    if size > MAX_BODY:
        raise BodyTooLong
    return b"".join(kept)


def check_sender(headers: Headers) -> Response | None:
    """Return the response that refuses a writing request by its headers; None allows it.

    A browser sends an Origin with every writing request. A program that has the token need not.
    """
    origins = headers.getlist("origin")
    if not origins and bearer_token(headers) is None:
        return error_response(403, "Writing needs the header Origin, or the token as Authorization: Bearer TOKEN")
    if any(not is_own_origin(origin, headers.get("host", "")) for origin in origins) or len(origins) > 1:
        return error_response(403, "Another page sent this request: use the studio's own page")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return error_response(415, "Writing needs Content-Type: application/json")
    return None


def is_own_origin(origin: str, host: str) -> bool:
    """Return whether an Origin is the page of this server, as a browser sees it: perhaps behind a forwarded port."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()
