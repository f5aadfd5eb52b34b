"""Whose fault it is: the agent's, which it is told, or the server's."""

import mcp_types as types
from mcp import MCPError

from turnwise.tools.mcp.messages import MOST_BYTES, TOO_LONG
from turnwise.tools.tool import ToolError

RESERVED = range(-32768, -31999)
"""Codes of JSON-RPC and of MCP itself; servers use others for what their tools have to say."""
AGENTS = (types.INVALID_PARAMS, types.PARSE_ERROR)
"""Reserved, but about one call: arguments that the server refuses, an answer that cannot be read."""
FATAL = (types.CONNECTION_CLOSED, types.INVALID_REQUEST)
"""Nothing more can be asked over this connection."""
SHOWN = 300


class Lost(ConnectionError):
    """Not the agent's fault. `for_good`: the connection is of no more use."""

    def __init__(self, reason: str, *, for_good: bool = True) -> None:
        super().__init__(reason)
        self.for_good = for_good


def failure_of(error: MCPError) -> ToolError | Lost:
    if f"{MOST_BYTES} byte limit" in error.message or TOO_LONG in error.message:  # the SDK's words, our number
        return ToolError(TOO_LONG)
    if error.code not in RESERVED or error.code in AGENTS:
        return ToolError(error.message[:SHOWN])
    return Lost(error.message[:SHOWN], for_good=error.code in FATAL)


def reason_of(error: BaseException) -> str:
    """One line; of a group, its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return error.message[:SHOWN]
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:SHOWN]}"
