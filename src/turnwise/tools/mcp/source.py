"""MCP servers as tool sources: one server per episode, or one shared by all."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import mcp_types as types

from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.tools.mcp.connection import McpConnection
from turnwise.tools.mcp.messages import ConnectionLost
from turnwise.tools.mcp.options import McpOptions, resolve_server
from turnwise.tools.mcp.tools import CallServer, McpTool, build_tools, check_tool_names, to_tool_result
from turnwise.tools.tool import OpenTools, ToolError, ToolResult, ToolRules

MAX_STARTING = max(2, os.cpu_count() or 2)
"""Servers of one source that start at the same time; more would slow each other down."""
LATE = 0.95
"""Share of the timeout after which a cancelled call counts as timed out, not as given up by the caller."""
FIX_COMMAND = "run the command in a terminal; it must print MCP messages only, and be ready within start_timeout_s"
FIX_URL = "start that server, or correct the URL"

Value = TypeVar("Value")


class McpSource:
    """Checks its options when it is created; connects when an episode starts."""

    def __init__(self, options: McpOptions) -> None:
        self.options = options
        self.server = resolve_server(options)
        retries = options.retries if options.shared else 0
        self.rules = ToolRules(timeout_s=options.timeout_s, concurrency=options.concurrency, retries=retries)
        self._entered = PerLoop(self._enter_loop)

    @asynccontextmanager
    async def open_tools(self, seed: int, state: Any) -> AsyncIterator[OpenTools]:
        """Raises InfrastructureFailure if the server is unavailable, UserError if the options are wrong."""
        self._entered.get()
        if self.options.shared:
            await _as_infrastructure_failure(self._connect_shared)
            yield ServerTools(self, lambda: self._shared_tools, self._call_shared)
            return
        connection = await _as_infrastructure_failure(self._connect)

        async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            return await _as_infrastructure_failure(lambda: self._call(connection, name, arguments))

        try:
            yield ServerTools(self, lambda: connection.tools, call)
        finally:
            await connection.close()

    async def list_tool_names(self) -> Sequence[str]:
        """Connect, list the tools and disconnect."""
        self._entered.get()
        try:
            connection = await self._connect()
        except ConnectionLost as lost:
            raise UserError(f"{lost}: {FIX_URL if self.server.url else FIX_COMMAND}") from None
        try:
            label = self.server.label
            return [*build_tools(connection.tools, self.options, self.rules, self._call_shared, label=label)]
        finally:
            await connection.close()

    def _enter_loop(self) -> None:
        """Discard connections of an earlier event loop, which ended with it."""
        self._start_limit = asyncio.Semaphore(MAX_STARTING)
        self._shared: asyncio.Task[McpConnection] | None = None
        self._last_tools: tuple[types.Tool, ...] = ()
        self._close_tasks: set[asyncio.Task[None]] = set()

    async def _connect(self) -> McpConnection:
        async with self._start_limit:
            connection = await McpConnection.open(self.server, self.options.start_timeout_s)
        try:
            check_tool_names(connection.tools, self.options, self.server.label)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _call(self, connection: McpConnection, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            result = await connection.call(name, arguments)
        except ToolError as error:
            raise ToolError(self.server.redact(str(error))) from None
        return to_tool_result(result, self.options.max_output, self.server.redact, with_images=self.options.images)

    @property
    def _shared_tools(self) -> tuple[types.Tool, ...]:
        """Tools of the shared server; while it is down, its last known ones."""
        if (connection := _result_of(self._shared)) is not None:
            self._last_tools = connection.tools
        return self._last_tools

    async def _connect_shared(self) -> McpConnection:
        """Return the shared connection, restarting a dead server. The start continues if the caller is cancelled."""
        connection = _result_of(self._shared)
        if connection is not None and not connection.alive:
            self._drop(connection)
        if self._shared is None or (self._shared.done() and _result_of(self._shared) is None):
            self._shared = asyncio.create_task(self._connect())
            self._shared.add_done_callback(_result_of)  # retrieves an exception that no caller waits for
        return await asyncio.shield(self._shared)

    async def _call_shared(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the shared server. The toolbox retries failures, which restarts the server if needed."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        connection = await self._connect_shared()
        num_answers = connection.num_answers
        try:
            return await self._call(connection, name, arguments)
        except ConnectionLost as lost:
            if lost.permanent:
                self._drop(connection)
            raise
        except asyncio.CancelledError:
            if connection.num_answers == num_answers and loop.time() - start >= LATE * self.rules.timeout_s:
                self._drop(connection)  # no call was answered in that time: the server is stuck
            raise

    def _drop(self, connection: McpConnection) -> None:
        if _result_of(self._shared) is connection:
            self._last_tools, self._shared = connection.tools, None
            task = asyncio.create_task(connection.close())
            self._close_tasks.add(task)
            task.add_done_callback(self._close_tasks.discard)


class ServerTools:
    """Tools of a server for one episode, rebuilt when the server's list changes."""

    def __init__(self, source: McpSource, list_tools: Callable[[], Sequence[types.Tool]], call: CallServer) -> None:
        self._source, self._list_tools, self._call = source, list_tools, call
        self._built_from: Sequence[types.Tool] | None = None
        self._tools: dict[str, tuple[McpTool, McpTool]] = {}

    @property
    def tools(self) -> Mapping[str, tuple[McpTool, McpTool]]:
        listed, source = self._list_tools(), self._source
        if listed is not self._built_from:
            built = build_tools(listed, source.options, source.rules, self._call, label=source.server.label)
            self._tools, self._built_from = {name: (tool, tool) for name, tool in built.items()}, listed
        return self._tools


def _result_of(start: asyncio.Task[McpConnection] | None) -> McpConnection | None:
    """Connection of a finished start; None if it is pending or failed."""
    if start is None or not start.done() or start.cancelled() or start.exception() is not None:
        return None
    return start.result()


async def _as_infrastructure_failure(operation: Callable[[], Awaitable[Value]]) -> Value:
    """Raise ConnectionLost as InfrastructureFailure: the server's state is lost, so the episode is retried."""
    try:
        return await operation()
    except ConnectionLost as lost:
        raise InfrastructureFailure(str(lost)) from None
