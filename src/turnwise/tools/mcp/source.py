"""The tools of an MCP server: every episode has one for itself, or all share one."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import mcp_types as types

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.tools.mcp.connection import McpConnection
from turnwise.tools.mcp.messages import ConnectionLost
from turnwise.tools.mcp.options import McpOptions, resolve_server
from turnwise.tools.mcp.tools import CallServer, McpTool, build_tools, check_tool_names, to_tool_result
from turnwise.tools.tool import OpenTools, ToolError, ToolResult, ToolRules

STARTS_AT_ONCE = max(2, os.cpu_count() or 2)
"""Servers of one source: more would only make all of them slower."""
LATE = 0.95
"""Of the time-out: a call that was cancelled after this much of it took too long, and was not given up for others."""
MEND_COMMAND = "try the command in a terminal; its output must be MCP alone, and start_timeout_s is the time it has"
MEND_URL = "start that server, or mend its URL"

Given = TypeVar("Given")


class McpSource:
    """Its options are checked when it is made; it connects when an episode starts."""

    def __init__(self, options: McpOptions) -> None:
        self.options = options
        self.server = resolve_server(options)
        retries = options.retries if options.shared else 0
        self.rules = ToolRules(timeout_s=options.timeout_s, concurrency=options.concurrency, retries=retries)
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def open_tools(self, seed: int, state: Any) -> AsyncIterator[OpenTools]:
        """InfrastructureFailure where the server cannot be had; UserError where it never will."""
        self._settle()
        if self.options.shared:
            await _or_failure(self._current)
            yield ServerTools(self, lambda: self._listed, self._ask_shared)
            return
        connection = await _or_failure(self._connect)

        async def ask(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            return await _or_failure(lambda: self._ask(connection, name, arguments))

        try:
            yield ServerTools(self, lambda: connection.listed, ask)
        finally:
            await connection.close()

    async def list_tool_names(self) -> Sequence[str]:
        """Starts it, or greets it, and lets it go again."""
        self._settle()
        try:
            connection = await self._connect()
        except ConnectionLost as lost:
            raise UserError(f"{lost}: {MEND_URL if self.server.url else MEND_COMMAND}") from None
        try:
            label = self.server.label
            return [*build_tools(connection.listed, self.options, self.rules, self._ask_shared, label=label)]
        finally:
            await connection.close()

    def _settle(self) -> None:
        """Connections belong to one event loop: those of a loop that has ended have ended with it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
            self._shared: asyncio.Task[McpConnection] | None = None
            self._last_listed: tuple[types.Tool, ...] = ()
            self._closing: set[asyncio.Task[None]] = set()

    async def _connect(self) -> McpConnection:
        async with self._starts:
            connection = await McpConnection.open(self.server, self.options.start_timeout_s)
        try:
            check_tool_names(connection.listed, self.options, self.server.label)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _ask(self, connection: McpConnection, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            result = await connection.call(name, arguments)
        except ToolError as error:
            raise ToolError(self.server.hidden(str(error))) from None
        return to_tool_result(result, self.options.max_output, self.server.hidden)

    @property
    def _listed(self) -> tuple[types.Tool, ...]:
        """Of the shared server; while it is down, those that it had."""
        if (connection := _connected(self._shared)) is not None:
            self._last_listed = connection.listed
        return self._last_listed

    async def _current(self) -> McpConnection:
        """The shared one, started again where it has died. Starting goes on although a call gives up on it."""
        connection = _connected(self._shared)
        if connection is not None and not connection.alive:
            self._drop(connection)
        if self._shared is None or (self._shared.done() and _connected(self._shared) is None):
            self._shared = asyncio.create_task(self._connect())
            self._shared.add_done_callback(_connected)  # a failure that nobody waits for any more is no news
        return await asyncio.shield(self._shared)

    async def _ask_shared(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What it raises is tried again by the box, with a server that was started again where that is needed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        connection = await self._current()
        answers = connection.answers
        try:
            return await self._ask(connection, name, arguments)
        except ConnectionLost as lost:
            if lost.permanent:
                self._drop(connection)
            raise
        except asyncio.CancelledError:
            if connection.answers == answers and loop.time() - began >= LATE * self.rules.timeout_s:
                self._drop(connection)  # it has answered nobody for so long: it is stuck
            raise

    def _drop(self, connection: McpConnection) -> None:
        if _connected(self._shared) is connection:
            self._last_listed, self._shared = connection.listed, None
            task = asyncio.create_task(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class ServerTools:
    """One episode's tools of a source, made anew when the server's list has changed."""

    def __init__(self, source: McpSource, listed: Callable[[], Sequence[types.Tool]], ask: CallServer) -> None:
        self._source, self._listed, self._ask = source, listed, ask
        self._made_of: Sequence[types.Tool] | None = None
        self._tools: dict[str, tuple[McpTool, McpTool]] = {}

    @property
    def tools(self) -> Mapping[str, tuple[McpTool, McpTool]]:
        listed, source = self._listed(), self._source
        if listed is not self._made_of:
            made = build_tools(listed, source.options, source.rules, self._ask, label=source.server.label)
            self._tools, self._made_of = {name: (tool, tool) for name, tool in made.items()}, listed
        return self._tools


def _connected(start: asyncio.Task[McpConnection] | None) -> McpConnection | None:
    """What a start came to; None while it is under way, and where it failed."""
    if start is None or not start.done() or start.cancelled() or start.exception() is not None:
        return None
    return start.result()


async def _or_failure(what: Callable[[], Awaitable[Given]]) -> Given:
    """What is lost cannot be had again: the episode is run again."""
    try:
        return await what()
    except ConnectionLost as lost:
        raise InfrastructureFailure(str(lost)) from None
