"""JSON-RPC messages of MCP servers: size limits, and errors sorted by whose fault they are."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable

import mcp_types as types
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, jsonrpc_message_adapter
from mcp_types.jsonrpc import ErrorData

from turnwise.text.truncation import first_line
from turnwise.tools.tool import ToolError

MAX_MESSAGE_BYTES = 16 << 20
TOO_LONG = f"the answer is larger than {MAX_MESSAGE_BYTES >> 20} MiB: ask for less"
UNREADABLE = "the answer cannot be read"
KEPT_BYTES = 120
"""Bytes kept at both ends of a line that is too long; one end contains the request's id."""
UNUSABLE = 1
"""Our error code for an answer that is too long or invalid; outside of the range that JSON-RPC reserves."""
ID_AT_START = re.compile(rb'^\{"jsonrpc": ?"2\.0", ?"id": ?(\d{1,15})[,}]')
ID_AT_END = re.compile(rb'"id": ?(\d{1,15})\}\s*$')

RESERVED = range(-32768, -31999)
"""Error codes of JSON-RPC and MCP; servers use others for errors of their tools."""
AGENTS_FAULT = (types.INVALID_PARAMS, types.PARSE_ERROR)
"""Reserved codes about a single call: rejected arguments, an unreadable answer."""
FATAL = (types.CONNECTION_CLOSED, types.INVALID_REQUEST)
"""Codes after which the connection cannot be used any more."""
MAX_ERROR_CHARS = 300


class ConnectionLost(ConnectionError):
    """A failure that is not the agent's fault. `permanent`: the connection cannot be used any more."""

    def __init__(self, reason: str, *, permanent: bool = True) -> None:
        super().__init__(reason)
        self.permanent = permanent


async def read_lines(
    stream: asyncio.StreamReader, on_partial: Callable[[bytes], None] = lambda rest: None
) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield lines with True, or both ends of a line longer than the stream's limit with False.

    `on_partial` receives what follows the last newline.
    """
    head = b""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.LimitOverrunError as overrun:
            chunk = await stream.readexactly(overrun.consumed)
            head = head or chunk[:KEPT_BYTES]
            continue
        except asyncio.IncompleteReadError as end:
            on_partial(end.partial)
            return
        yield (head + line[-KEPT_BYTES:], False) if head else (line, True)
        head = b""


def read_message(line: bytes, complete: bool) -> SessionMessage | None:
    """Parse a line; None if it is not a message. An unusable answer becomes an error for the request that waits."""
    problem = TOO_LONG
    if complete:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            problem = UNREADABLE
    request_id = ID_AT_START.search(line) or ID_AT_END.search(line)
    if request_id is None:
        return None
    error = ErrorData(code=UNUSABLE, message=problem)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(request_id[1]), error=error))


def classify_error(error: MCPError) -> ToolError | ConnectionLost:
    """Turn an MCP error into the agent's mistake or the server's failure."""
    if f"{MAX_MESSAGE_BYTES} byte limit" in error.message or TOO_LONG in error.message:  # the SDK's wording
        return ToolError(TOO_LONG)
    if error.code not in RESERVED or error.code in AGENTS_FAULT:
        return ToolError(error.message[:MAX_ERROR_CHARS])
    return ConnectionLost(error.message[:MAX_ERROR_CHARS], permanent=error.code in FATAL)


def describe_error(error: BaseException) -> str:
    """One line about an error, or about the first of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return error.message[:MAX_ERROR_CHARS]
    return f"{type(error).__name__}: {first_line(str(error), MAX_ERROR_CHARS)}"
