"""A server at a URL, over streamable HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from turnwise.tools.mcp.messages import MOST_BYTES, TOO_LONG
from turnwise.tools.mcp.options import Server

CONNECT_S = 10.0
IDLE_S = 600.0
"""Between two pieces of an answer; calls have time-outs of their own."""
CONNECTIONS = 256


class ServerAtUrl:
    """`open` is a transport as the SDK's client takes it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.status = 200
        """Of the last answer that was an error: the SDK does not say which it was."""

    @property
    def last_words(self) -> str:
        return f"it answered with HTTP status {self.status}" if self.status >= 400 else ""

    async def noise_alone(self, patience_s: float) -> None:
        """Never: what comes over HTTP is an answer, or none."""
        await asyncio.Event().wait()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Any, Any]]:
        async with (
            httpx2.AsyncClient(
                headers={"accept-encoding": "identity", **self._server.headers},
                timeout=httpx2.Timeout(CONNECT_S, read=IDLE_S),
                limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
                event_hooks={"response": [self._note]},
            ) as client,
            streamable_http_client(self._server.url, http_client=client, max_sse_event_size=MOST_BYTES) as streams,
        ):
            yield streams

    async def _note(self, response: httpx2.Response) -> None:
        """A server that knows no GET or DELETE says so with 405, which is no failure."""
        if response.status_code >= 400 and response.request.method == "POST":
            self.status = response.status_code
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    """An answer of known end; the SDK bounds those that come as events."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.StreamError(TOO_LONG)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
