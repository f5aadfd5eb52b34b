"""Lines of JSON-RPC from a server's output: bounded; an answer that cannot be used still reaches who waits for it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable

import mcp_types as types
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, jsonrpc_message_adapter
from mcp_types.jsonrpc import ErrorData

from turnwise.tools.tool import ToolError

MAX_MESSAGE_BYTES = 16 << 20
"""Of one message."""
TOO_LONG = f"the answer is larger than {MAX_MESSAGE_BYTES >> 20} MiB: ask for less"
ENDS = 120
"""Of a line that is too long, the bytes at both ends that are kept: one of them holds the request's number."""
UNUSABLE = 1
"""Our error code for an answer that is too long or no valid message; outside of those that JSON-RPC reserves."""
AT_THE_BEGINNING = re.compile(rb'^\{"jsonrpc": ?"2\.0", ?"id": ?(\d{1,15})[,}]')
AT_THE_END = re.compile(rb'"id": ?(\d{1,15})\}\s*$')


async def read_lines(
    stream: asyncio.StreamReader, unfinished: Callable[[bytes], None] = lambda rest: None
) -> AsyncIterator[tuple[bytes, bool]]:
    """Lines until the stream ends; of one that is longer than the stream's limit its two ends, and False.

    `unfinished`: is told what stands behind the last line: half an answer is none.
    """
    head = b""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.LimitOverrunError as over:
            piece = await stream.readexactly(over.consumed)
            head = head or piece[:ENDS]
            continue
        except asyncio.IncompleteReadError as end:
            unfinished(end.partial)
            return
        yield (head + line[-ENDS:], False) if head else (line, True)
        head = b""


def read_message(line: bytes, whole: bool) -> SessionMessage | None:
    """None for what is no message: programs print all sorts of things."""
    problem = TOO_LONG
    if whole:
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            problem = "the answer cannot be read"
    number = AT_THE_BEGINNING.search(line) or AT_THE_END.search(line)
    if number is None:
        return None
    error = ErrorData(code=UNUSABLE, message=problem)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(number[1]), error=error))


RESERVED = range(-32768, -31999)
"""Codes of JSON-RPC and of MCP itself; servers use others for what their tools have to say."""
AGENTS = (types.INVALID_PARAMS, types.PARSE_ERROR)
"""Reserved, but about one call: arguments that the server refuses, an answer that cannot be read."""
FATAL = (types.CONNECTION_CLOSED, types.INVALID_REQUEST)
"""Nothing more can be asked over this connection."""
SHOWN = 300


class ConnectionLost(ConnectionError):
    """Not the agent's fault. `permanent`: the connection is of no more use."""

    def __init__(self, reason: str, *, permanent: bool = True) -> None:
        super().__init__(reason)
        self.permanent = permanent


def classify_error(error: MCPError) -> ToolError | ConnectionLost:
    if f"{MAX_MESSAGE_BYTES} byte limit" in error.message or TOO_LONG in error.message:  # the SDK's words, our number
        return ToolError(TOO_LONG)
    if error.code not in RESERVED or error.code in AGENTS:
        return ToolError(error.message[:SHOWN])
    return ConnectionLost(error.message[:SHOWN], permanent=error.code in FATAL)


def describe_error(error: BaseException) -> str:
    """One line; of a group, its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return error.message[:SHOWN]
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:SHOWN]}"
