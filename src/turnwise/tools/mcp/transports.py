"""A server as a process: on a leash, its messages bounded, its error output kept away from the terminal.

The SDK's own transport for processes reads lines of any length, says errors on our terminal, and kills a group, not a
tree.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from turnwise.tools.mcp.messages import MAX_MESSAGE_BYTES, TOO_LONG, read_lines, read_message
from turnwise.tools.mcp.options import McpServer
from turnwise.tools.mcp.process_guard import GRACE_S, KILL_S

WAITING = 1024
"""Messages to the server that wait for room in its input: a cancelled call must not wait to say so."""
POLL_S = 0.01
MARKER = "TURNWISE_MCP_SERVER"
"""A variable of every server's, by which all that it starts is found should its leash be killed."""
PROCESS_GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("process_guard.py")))

Streams = tuple[Any, Any]


class StdioTransport:
    """One process; `open` is a transport as the SDK's client takes it."""

    def __init__(self, server: McpServer, ended: Callable[[], None]) -> None:
        """`ended` is called when its output ends."""
        self._server, self._ended = server, ended
        self._mark = uuid4().hex
        self._said, self._printed = OutputTail(), OutputTail()
        self._noise = asyncio.Event()
        self._spoke = False
        self._process: asyncio.subprocess.Process | None = None

    @property
    def diagnosis(self) -> str:
        """How it ended, as far as it has, and the last that it said; of one that never spoke MCP, what it printed."""
        status = None if self._process is None else self._process.returncode
        printed, said = "" if self._spoke else self._printed.last_line, self._said.last_line
        ending = "" if status is None else _ending(status)
        parts = [ending, f"it printed: {printed}" if printed else "", f"it said: {said}" if said else ""]
        return "; ".join(part for part in parts if part)

    async def wait_for_noise(self, patience_s: float) -> None:
        """waits for: output that is no MCP, and then so long for any that is. unblocked by: the server, time."""
        await self._noise.wait()
        await asyncio.sleep(patience_s)
        if self._spoke:
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
            env={**self._server.environment, MARKER: self._mark},
            cwd=self._server.folder,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )
        heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, to_write = anyio.create_memory_object_stream[SessionMessage](WAITING)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, heard)
                tasks.start_soon(self._write, to_write)
                tasks.start_soon(self._keep_errors)
                try:
                    yield incoming, outgoing
                finally:
                    with anyio.CancelScope(shield=True):
                        await _stop(process)
                    tasks.cancel_scope.cancel()
        finally:
            _kill(process)
            if process.returncode is None or process.returncode < 0:  # its leash was killed or stopped
                kill_marked(self._mark)
            for stream in (heard, incoming, outgoing, to_write):
                stream.close()

    async def _read(self, heard: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """waits for: the server's output. unblocked by: the server, its end."""
        assert self._process is not None and self._process.stdout is not None
        with heard, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            async for line, whole in read_lines(self._process.stdout, self._printed.add):
                if (message := read_message(line, whole)) is not None:
                    self._spoke = True
                    await heard.send(message)
                elif line.strip():
                    self._printed.add(line)
                    self._noise.set()
        self._ended()

    async def _write(self, to_write: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """waits for: a message of ours, room in the server's input. unblocked by: either, the server's end."""
        assert self._process is not None and self._process.stdin is not None
        with to_write, suppress(OSError):
            async for message in to_write:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(line.encode() + b"\n")
                await self._process.stdin.drain()

    async def _keep_errors(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        while data := await self._process.stderr.read(1 << 16):
            self._said.add(data)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """The input's end asks the server to go; the leash sees to it that it does, and all of its own.

    Cancelled meanwhile, as an ending event loop cancels all tasks, it hurries, and passes it on when it is done.
    """
    assert process.stdin is not None
    process.stdin.close()
    end, cancelled = time.monotonic() + GRACE_S + KILL_S + 1.0, False
    while process.returncode is None and time.monotonic() < end:
        try:
            await asyncio.sleep(POLL_S)
        except asyncio.CancelledError:
            _kill(process)
            cancelled = True
    if process.returncode is not None:
        process._transport.close()  # type: ignore[attr-defined]  # else a loop that ends now would complain of it
        await asyncio.sleep(0)
    if cancelled:
        raise asyncio.CancelledError


def _kill(process: asyncio.subprocess.Process) -> None:
    """The leash kills the tree."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)


def kill_marked(mark: str) -> None:
    """Kills all that was started with this mark in its environment, until none is left; on Linux only."""
    wanted, end = f"{MARKER}={mark}".encode(), time.monotonic() + KILL_S
    while time.monotonic() < end and (found := [pid for pid in _processes() if wanted in _environment(pid)]):
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _processes() -> list[int]:
    proc = Path("/proc")
    return [int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()] if proc.is_dir() else []


def _environment(pid: int) -> list[bytes]:
    """None of a process that has ended, or that is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _ending(status: int) -> str:
    number = -status if status < 0 else status - 128
    if number in set(signal.Signals):
        return f"it was killed by {signal.Signals(number).name}"
    return f"it ended with status {status}"


KEPT = 4096
SHOWN = 200
CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
CHATTER = re.compile(r"^\s+at |^Node\.js v|^npm error (\d+\s*$|.*(complete log|Note that you can|tarball, folder))")
"""What node and npm say behind the line that tells what is wrong."""


class OutputTail:
    """The end of a server's error output; the rest is let go."""

    def __init__(self) -> None:
        self._bytes = b""

    def add(self, data: bytes) -> None:
        self._bytes = (self._bytes + data)[-KEPT:]

    @property
    def last_line(self) -> str:
        """The last that tells of an error, where one does."""
        lines = CONTROL.sub("", self._bytes.decode("utf-8", "replace")).split("\n")
        telling = [line.strip() for line in lines if line.strip() and not CHATTER.search(line)]
        errors = [line for line in telling if "error" in line.lower()]
        return (errors or telling or [""])[-1][:SHOWN]


CONNECT_S = 10.0
IDLE_S = 600.0
"""Between two pieces of an answer; calls have time-outs of their own."""
CONNECTIONS = 256


class HttpTransport:
    """`open` is a transport as the SDK's client takes it."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self.status = 200
        """Of the last answer that was an error: the SDK does not say which it was."""

    @property
    def diagnosis(self) -> str:
        return f"it answered with HTTP status {self.status}" if self.status >= 400 else ""

    async def wait_for_noise(self, patience_s: float) -> None:
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
            streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
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
        left = MAX_MESSAGE_BYTES
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.StreamError(TOO_LONG)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
