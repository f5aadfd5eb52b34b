"""Transports to MCP servers: a process over stdio, or a URL over streamable HTTP.

The SDK's own stdio transport reads lines of any length, prints the server's errors to our terminal, and kills only the
process group. This one bounds messages, keeps the tail of stderr for error messages, and kills the process tree.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from turnwise.tools.mcp.messages import MAX_MESSAGE_BYTES, TOO_LONG, read_lines, read_message
from turnwise.tools.mcp.options import McpServer
from turnwise.tools.process_guard import GRACE_S, KILL_S
from turnwise.tools.process_tree import (
    MARKER,
    POLL_S,
    PROCESS_GUARD,
    OutputTail,
    describe_exit,
    kill_marked,
    terminate,
)

MAX_QUEUED = 1024
"""Messages queued while the server's input is full: cancelling a call must not block."""
CONNECT_S = 10.0
IDLE_S = 600.0
"""Maximum time between two pieces of a response; calls have their own timeouts."""
MAX_CONNECTIONS = 256

Streams = tuple[Any, Any]


class StdioTransport:
    """Server process. `open` yields the streams that the SDK's client expects from a transport."""

    def __init__(self, server: McpServer, on_exit: Callable[[], None]) -> None:
        """`on_exit` is called when the server's output ends."""
        self._server, self._on_exit = server, on_exit
        self._marker = uuid4().hex
        self._stderr, self._noise = OutputTail(), OutputTail()
        self._printed_noise = asyncio.Event()
        self._speaks_mcp = False
        self._process: asyncio.subprocess.Process | None = None

    @property
    def diagnosis(self) -> str:
        """Exit status and last stderr line; also the last output line of a program that never spoke MCP."""
        status = None if self._process is None else self._process.returncode
        noise, stderr = "" if self._speaks_mcp else self._noise.last_line, self._stderr.last_line
        ending = "" if status is None else describe_exit(status)
        parts = [ending, f"it printed: {noise}" if noise else "", f"stderr: {stderr}" if stderr else ""]
        return "; ".join(part for part in parts if part)

    async def wait_for_noise(self, patience_s: float) -> None:
        """Wait until the program has printed something, and no MCP message within `patience_s`. May wait forever."""
        await self._printed_noise.wait()
        await asyncio.sleep(patience_s)
        if self._speaks_mcp:
            await asyncio.Event().wait()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        process = self._process = await asyncio.create_subprocess_exec(
            *PROCESS_GUARD,
            str(os.getpid()),
            *self._server.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self._server.environment, MARKER: self._marker},
            cwd=self._server.folder,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, to_write = anyio.create_memory_object_stream[SessionMessage](MAX_QUEUED)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, received)
                tasks.start_soon(self._write, to_write)
                tasks.start_soon(self._read_stderr)
                try:
                    yield incoming, outgoing
                finally:
                    with anyio.CancelScope(shield=True):
                        await _stop(process)
                    tasks.cancel_scope.cancel()
        finally:
            terminate(process)
            if process.returncode is None or process.returncode < 0:  # the process guard was killed or stopped
                kill_marked(self._marker)
            for stream in (received, incoming, outgoing, to_write):
                stream.close()

    async def _read(self, received: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Waits for: the server's output. Unblocked by: the server, its exit."""
        assert self._process is not None and self._process.stdout is not None
        with received, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            async for line, complete in read_lines(self._process.stdout, self._noise.add):
                if (message := read_message(line, complete)) is not None:
                    self._speaks_mcp = True
                    await received.send(message)
                elif line.strip():
                    self._noise.add(line)
                    self._printed_noise.set()
        self._on_exit()

    async def _write(self, to_write: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Waits for: our messages, space in the server's input. Unblocked by: either, the server's exit."""
        assert self._process is not None and self._process.stdin is not None
        with to_write, suppress(OSError):
            async for message in to_write:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()

    async def _read_stderr(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        while data := await self._process.stderr.read(1 << 16):
            self._stderr.add(data)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close the server's input and wait for the process guard to end the server and its descendants.

    If cancelled meanwhile, as when the event loop shuts down, terminate at once and re-raise afterwards.
    """
    assert process.stdin is not None
    process.stdin.close()
    deadline, cancelled = time.monotonic() + GRACE_S + KILL_S + 1.0, False
    while process.returncode is None and time.monotonic() < deadline:
        try:
            await asyncio.sleep(POLL_S)
        except asyncio.CancelledError:
            terminate(process)
            cancelled = True
    if process.returncode is not None:
        process._transport.close()  # type: ignore[attr-defined]  # a closing event loop would warn otherwise
        await asyncio.sleep(0)
    if cancelled:
        raise asyncio.CancelledError


class HttpTransport:
    """Server at a URL. `open` yields the streams that the SDK's client expects from a transport."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self.status = 200
        """Status of the last error response, which the SDK does not report."""

    @property
    def diagnosis(self) -> str:
        return f"it answered with HTTP status {self.status}" if self.status >= 400 else ""

    async def wait_for_noise(self, patience_s: float) -> None:
        """Wait forever: a URL prints nothing."""
        await asyncio.Event().wait()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        async with (
            httpx2.AsyncClient(
                headers={"accept-encoding": "identity", **self._server.headers},
                timeout=httpx2.Timeout(CONNECT_S, read=IDLE_S),
                limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
                event_hooks={"response": [self._on_response]},
            ) as client,
            streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    async def _on_response(self, response: httpx2.Response) -> None:
        """Record error statuses and bound the body. Only POST counts: servers may answer GET and DELETE with 405."""
        if response.status_code >= 400 and response.request.method == "POST":
            self.status = response.status_code
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
    """Response body with a size limit. Event streams are bounded by the SDK."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        remaining = MAX_MESSAGE_BYTES
        async for chunk in self._stream:
            remaining -= len(chunk)
            if remaining < 0:
                raise httpx2.StreamError(TOO_LONG)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
