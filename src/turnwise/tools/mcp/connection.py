"""One connection to an MCP server, owned by its own task.

The SDK requires that the task that enters a client also exits it, but an episode may be started by one task and closed
by another.
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

MAX_PAGES = 64
"""Pages of a list of tools."""
SUBSCRIBE_S = 5.0
REFRESH_S = 5.0
"""Seconds that a call waits for an updated list of tools before it returns without."""
EXIT_WAIT_S = 1.0
"""Seconds to wait for the reason why a connection broke."""
CLOSE_S = 6.0
"""Longer than a process has to exit; after that the task is cancelled."""
NOISE_SHARE = 0.25
"""A program that prints other output, but no MCP message, for this share of the start timeout is rejected."""
UNAUTHORIZED = (401, 403)
CLIENT_INFO = types.Implementation(name="turnwise", version="1")

for _name in ("mcp", "client"):  # the SDK's loggers, which would otherwise print into the progress display
    logging.getLogger(_name).addHandler(logging.NullHandler())


class McpConnection:
    """Create it with `open`. Any task of the event loop may call it, many at a time."""

    def __init__(self, server: McpServer) -> None:
        self.tools: tuple[types.Tool, ...] = ()
        """The server's current tools."""
        self.num_answers = 0
        """Answered calls. A server that answers none may be stuck."""
        self._server = server
        self._closing = asyncio.Event()
        self._transport = HttpTransport(server) if server.url else StdioTransport(server, self._closing.set)
        self._client: Client | None = None
        self._failure = ""
        self._tools_changed = False
        self._refresh_task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"mcp {server.label}")

    @classmethod
    async def open(cls, server: McpServer, timeout_s: float) -> "McpConnection":
        """Connect and list the tools. Raises ConnectionLost, or UserError if the server requires a key."""
        connection = cls(server)
        try:
            await connection._wait_until_ready(timeout_s)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def alive(self) -> bool:
        return self._client is not None and not self._closing.is_set()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
        """Call a tool. Raises ToolError or ConnectionLost. If cancelled, the server is notified."""
        try:
            if self._client is None:
                raise MCPError(types.CONNECTION_CLOSED, "Connection closed")
            result = await self._client.call_tool(name, dict(arguments))
        except MCPError as error:
            failure = classify_error(error)
            if isinstance(failure, ConnectionLost):
                raise await self._diagnose(failure) from None
            self.num_answers += 1
            raise failure from None
        except Exception as error:  # raised by the SDK for answers that violate the protocol
            raise await self._diagnose(ConnectionLost(describe_error(error), permanent=not self.alive)) from error
        self.num_answers += 1
        await self._wait_for_refresh()
        return result

    async def close(self) -> None:
        """Disconnect and end the server. Completes even if the caller is cancelled meanwhile."""
        self._closing.set()
        if not self._ready.done():  # it is still starting and does not check the event
            self._task.cancel()
        _, pending = await asyncio.wait([self._task], timeout=CLOSE_S)
        if pending:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _wait_until_ready(self, timeout_s: float) -> None:
        """Waits for: the list of tools. Unblocked by: the server, output that is not MCP, the timeout."""
        noise = asyncio.create_task(self._transport.wait_for_noise(NOISE_SHARE * timeout_s))
        try:
            done, _ = await asyncio.wait([self._ready, noise], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            noise.cancel()
        if self._ready in done:
            self._ready.result()
        else:
            late = f"it was not ready within {timeout_s:g} s"
            raise ConnectionLost(self._describe("its output is not MCP" if noise in done else late))

    async def _run(self) -> None:
        """Waits for: `close`, the server's exit. Unblocked by: either."""
        try:
            async with AsyncExitStack() as stack:
                client = Client(
                    self._transport.open(), message_handler=self._on_message, cache=None, client_info=CLIENT_INFO
                )
                await stack.enter_async_context(client)
                await _subscribe(client, stack)
                self.tools = await _list_tools(client)
                self._client = client
                self._ready.set_result(None)
                await self._closing.wait()
                self._client = None
        except Exception as error:
            self._failure = describe_error(error)
        finally:
            self._client = None
            self._closing.set()
            if self._refresh_task is not None:
                self._refresh_task.cancel()
            if not self._ready.done():
                self._ready.set_exception(self._start_failure())
                self._ready.exception()  # mark it as retrieved: the caller may have given up

    async def _on_message(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification) and self._client is not None:
            self._tools_changed = True
            if self._refresh_task is None or self._refresh_task.done():
                self._refresh_task = asyncio.create_task(self._refresh(self._client))

    async def _refresh(self, client: Client) -> None:
        """List the tools again, once at a time however often the server sends changes."""
        while self._tools_changed:
            self._tools_changed = False
            with suppress(MCPError, RuntimeError, ValueError):  # the next call reports a broken connection
                self.tools = await _list_tools(client)

    async def _wait_for_refresh(self) -> None:
        """Wait for the new list after a call that changed the tools, so that the next turn sees it."""
        if self._refresh_task is not None and not self._refresh_task.done():
            await asyncio.wait([self._refresh_task], timeout=REFRESH_S)

    async def _diagnose(self, lost: ConnectionLost) -> ConnectionLost:
        """Add what the transport knows, such as the exit status, once it is known."""
        if lost.permanent or not self.alive:
            await asyncio.wait([self._task], timeout=EXIT_WAIT_S)
        return ConnectionLost(self._describe(self._failure or str(lost)), permanent=lost.permanent)

    def _start_failure(self) -> Exception:
        if isinstance(self._transport, HttpTransport) and self._transport.status in UNAUTHORIZED:
            status, fix = self._transport.status, 'set its key with headers = { Authorization = "NAME_OF_VARIABLE" }'
            return UserError(f"mcp {self._server.label}: it answered with HTTP status {status}: {fix}")
        return ConnectionLost(self._describe(self._failure or "it was closed while starting"))

    def _describe(self, reason: str) -> str:
        details = "; ".join(part for part in (reason, self._transport.diagnosis) if part)
        return self._server.redact(f"mcp {self._server.label}: {details}")


async def _subscribe(client: Client, stack: AsyncExitStack) -> None:
    """Subscribe to changes of the tools, as protocol 2026-07-28 requires. Servers that refuse are used as they are."""
    capability = client.server_capabilities.tools
    if client.protocol_version in MODERN_PROTOCOL_VERSIONS and capability is not None and capability.list_changed:
        with suppress(MCPError, RuntimeError), anyio.move_on_after(SUBSCRIBE_S):
            await stack.enter_async_context(client.listen(tools_list_changed=True))


async def _list_tools(client: Client) -> tuple[types.Tool, ...]:
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(tools)
