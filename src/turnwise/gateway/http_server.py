"""The web server in the current event loop: bounded headers, slow clients cut off, no signal handlers."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnwise.files.open_files import raise_open_file_limit
from turnwise.network.ports import listener_url

HEADER_TIMEOUT_S = 60.0
"""Time in which a new connection must have sent the headers of its first request."""
WRITE_TIMEOUT_S = 60.0
"""Time in which a client must read each part of a response."""
KEEP_ALIVE_S = 75
"""Seconds that an unused connection stays open: longer than clients keep theirs, so that none breaks off in use."""
MAX_CONNECTIONS = 16_384


class LocalServer(uvicorn.Server):
    """A server in the current event loop, which leaves the process's signal handlers alone."""

    async def start(self, *listeners: socket.socket) -> None:
        """Serve in a task; return once requests are accepted."""
        raise_open_file_limit(MAX_CONNECTIONS)
        self._listeners = listeners
        self._serving = asyncio.create_task(self.serve(sockets=list(listeners)))
        while not self.started and not self._serving.done():
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        """Break off the connections and stop listening."""
        self.should_exit = self.force_exit = True
        await self._serving
        for listener in self._listeners:
            listener.close()

    @property
    def url(self) -> str:
        """Address of the first listener, without a path."""
        return listener_url(self._listeners[0])

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Connection(H11Protocol):
    """A connection that is closed if it sends no request. Its headers are limited to 64 KiB by h11."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEADER_TIMEOUT_S, self._close_unused)

    def _close_unused(self) -> None:
        is_socket = self.transport.get_protocol() is not self
        if self.cycle is None and not is_socket and not self.transport.is_closing():
            self.transport.close()


def server_config(app: ASGIApp, **websockets: Any) -> uvicorn.Config:
    """Return the settings of the server. `websockets`: uvicorn's settings of them. Default: there are none."""
    return uvicorn.Config(
        _with_write_timeout(app),
        http=_Connection,
        **{"ws": "none", **websockets},
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        limit_concurrency=MAX_CONNECTIONS,
    )


def _with_write_timeout(app: ASGIApp) -> ASGIApp:
    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await send(message)

        await app(scope, receive, send_in_time)

    return bounded


async def wait_for_stop() -> None:
    """Wait until the task is cancelled, by Ctrl-C or a signal."""
    await asyncio.Event().wait()
