"""One connection to a server, held by a task of its own: the SDK wants it left by the task that entered it, and an
episode may be started by one task and closed by another.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from turnwise.core.errors import UserError
from turnwise.tools.mcp.messages import ConnectionLost, classify_error, describe_error
from turnwise.tools.mcp.options import McpServer
from turnwise.tools.mcp.transports import HttpTransport, StdioTransport

MOST_PAGES = 64
"""Of a list of tools."""
SUBSCRIBE_S = 5.0
REFRESH_S = 5.0
"""That a call's answer waits for a new list of tools; it comes later then."""
LAST_WORDS_S = 1.0
"""After a connection broke, for its end to become known."""
CLOSE_S = 6.0
"""Longer than a process is given to end; beyond it the task is cancelled."""
NOISE_SHARE = 0.25
"""Of the time to start: a program that prints for so long, and no word of MCP, is no server."""
REFUSED = (401, 403)
ABOUT_US = types.Implementation(name="turnwise", version="1")

for _name in ("mcp", "client"):  # the SDK's; without a handler they would write into the terminal's progress
    logging.getLogger(_name).addHandler(logging.NullHandler())


class McpConnection:
    """Made by `open`. Calls may come from any task of its event loop, many at a time."""

    def __init__(self, server: McpServer) -> None:
        self.listed: tuple[types.Tool, ...] = ()
        """The server's tools, as they are now."""
        self.answers = 0
        """How many calls it has answered: one that is silent may be stuck."""
        self._server = server
        self._leave = asyncio.Event()
        self._end = HttpTransport(server) if server.url else StdioTransport(server, self._leave.set)
        self._client: Client | None = None
        self._reason = ""
        self._stale = False
        self._refreshing: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(), name=f"mcp {server.label}")

    @classmethod
    async def open(cls, server: McpServer, timeout_s: float) -> "McpConnection":
        """With its tools. Raises Lost."""
        connection = cls(server)
        try:
            await connection._greeted(timeout_s)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def alive(self) -> bool:
        return self._client is not None and not self._leave.is_set()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Raises ToolError or Lost. Cancelled, it tells the server so."""
        try:
            if self._client is None:
                raise MCPError(types.CONNECTION_CLOSED, "Connection closed")
            result = await self._client.call_tool(name, dict(arguments))
        except MCPError as error:
            failure = classify_error(error)
            if isinstance(failure, ConnectionLost):
                raise await self._explained(failure) from None
            self.answers += 1
            raise failure from None
        except Exception as error:  # whatever the SDK makes of an answer that breaks the protocol
            raise await self._explained(ConnectionLost(describe_error(error), permanent=not self.alive)) from error
        self.answers += 1
        await self._refreshed()
        return result

    async def close(self) -> None:
        """When this returns, nothing of the server is left; it ends too where the caller is cancelled meanwhile."""
        self._leave.set()
        if not self._ready.done():  # it is in the middle of its greetings, and does not look
            self._task.cancel()
        _, late = await asyncio.wait([self._task], timeout=CLOSE_S)
        if late:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _greeted(self, timeout_s: float) -> None:
        """waits for: its list of tools. unblocked by: the server, its noise, time."""
        noise = asyncio.create_task(self._end.wait_for_noise(NOISE_SHARE * timeout_s))
        try:
            done, _ = await asyncio.wait([self._ready, noise], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            noise.cancel()
        if self._ready in done:
            self._ready.result()
        else:
            late = f"it was not ready within {timeout_s:g} s"
            raise ConnectionLost(self._told("it writes to its output what is no MCP" if noise in done else late))

    async def _live(self) -> None:
        """waits for: whoever closes it, the server's end. unblocked by: `close`, the transport."""
        try:
            async with AsyncExitStack() as stack:
                client = Client(self._end.open(), message_handler=self._hear, cache=None, client_info=ABOUT_US)
                await stack.enter_async_context(client)
                await _subscribe(client, stack)
                self.listed = await _all_tools(client)
                self._client = client
                self._ready.set_result(None)
                await self._leave.wait()
                self._client = None
        except Exception as error:
            self._reason = describe_error(error)
        finally:
            self._client = None
            self._leave.set()
            if self._refreshing is not None:
                self._refreshing.cancel()
            if not self._ready.done():
                self._ready.set_exception(self._not_started())
                self._ready.exception()  # nobody may be waiting any more

    async def _hear(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification) and self._client is not None:
            self._stale = True
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.create_task(self._refresh(self._client))

    async def _refresh(self, client: Client) -> None:
        """One at a time, however often a server says that its list has changed."""
        while self._stale:
            self._stale = False
            with suppress(MCPError, RuntimeError, ValueError):  # a connection that broke is told by the next call
                self.listed = await _all_tools(client)

    async def _refreshed(self) -> None:
        """A call that changed the tools is followed by a turn that knows of it."""
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.wait([self._refreshing], timeout=REFRESH_S)

    async def _explained(self, lost: ConnectionLost) -> ConnectionLost:
        """With what the server's end has to say of it, once it is known."""
        if lost.permanent or not self.alive:
            await asyncio.wait([self._task], timeout=LAST_WORDS_S)
        return ConnectionLost(self._told(self._reason or str(lost)), permanent=lost.permanent)

    def _not_started(self) -> Exception:
        if isinstance(self._end, HttpTransport) and self._end.status in REFUSED:
            how = 'give its key by headers = { Authorization = "NAME_OF_VARIABLE" }'
            return UserError(f"mcp {self._server.label}: it answered with HTTP status {self._end.status}: {how}")
        return ConnectionLost(self._told(self._reason or "it was closed while it started"))

    def _told(self, reason: str) -> str:
        words = "; ".join(part for part in (reason, self._end.diagnosis) if part)
        return self._server.hidden(f"mcp {self._server.label}: {words}")


async def _subscribe(client: Client, stack: AsyncExitStack) -> None:
    """Since 2026-07-28 a server tells of changes only those who ask. One that refuses is taken as it is."""
    able = client.server_capabilities.tools
    if client.protocol_version in MODERN_PROTOCOL_VERSIONS and able is not None and able.list_changed:
        with suppress(MCPError, RuntimeError), anyio.move_on_after(SUBSCRIBE_S):
            await stack.enter_async_context(client.listen(tools_list_changed=True))


async def _all_tools(client: Client) -> tuple[types.Tool, ...]:
    found: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(found)
