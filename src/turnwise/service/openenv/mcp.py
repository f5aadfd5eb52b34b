"""JSON-RPC of MCP tools: `tools/list`, `tools/call`, and OpenEnv's sessions over HTTP."""

from typing import Any

from pydantic import Field

from turnwise.service.openenv.served_env import ServedEnv
from turnwise.service.openenv.sessions import ServerSession, Sessions
from turnwise.service.openenv.wire import (
    CAPACITY_REACHED,
    INVALID_JSON,
    SESSION_ERROR,
    VALIDATION_ERROR,
    ProtocolError,
    Strict,
    validate,
)

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR, SERVER_ERROR = -32602, -32603, -32000
CODES = {
    INVALID_JSON: PARSE_ERROR,
    VALIDATION_ERROR: INVALID_PARAMS,
    SESSION_ERROR: INVALID_PARAMS,
    CAPACITY_REACHED: SERVER_ERROR,
}
"""Code of the protocol's error -> that of JSON-RPC; others are internal errors."""
LIST = "tools/list"


class RpcRequest(Strict):
    jsonrpc: str
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class RpcError(Exception):
    """An error of JSON-RPC."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


class McpServer:
    """Answers requests, in the session of a socket or in those that they name."""

    def __init__(self, served: ServedEnv, sessions: Sessions) -> None:
        self._served, self._sessions = served, sessions

    async def answer(self, message: Any, own: ServerSession | None = None) -> dict[str, Any]:
        """Return the response. `own`: the session of the socket that the request came on."""
        request_id = None
        try:
            try:
                request = validate(RpcRequest, message)
            except ProtocolError as error:
                raise RpcError(INVALID_REQUEST, f"Invalid request: {error}") from None
            request_id = request.id
            if request.jsonrpc != "2.0":
                raise RpcError(INVALID_REQUEST, 'Invalid request: jsonrpc must be "2.0"')
            return {"jsonrpc": "2.0", "id": request_id, "result": await self._run(request, own)}
        except ProtocolError as error:
            return error_response(CODES.get(error.code, INTERNAL_ERROR), str(error), error.data, request_id)
        except RpcError as error:
            return error_response(error.code, str(error), error.data, request_id)

    async def _run(self, request: RpcRequest, own: ServerSession | None) -> Any:
        match request.method:
            case "openenv/session/create":
                return {"session_id": (own or self._sessions.open()).id}
            case "openenv/session/close":
                return await self._close(request.params.get("session_id"), own)
            case "tools/list" | "tools/call":
                if not self._served.calls_tools:
                    raise RpcError(INTERNAL_ERROR, f"{self._served.spec.name} has no tools: its actions are replies.")
                return await self._use_tools(request, own)
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method[:64]}")

    async def _close(self, session_id: Any, own: ServerSession | None) -> dict[str, Any]:
        session = self._sessions.find(session_id)
        if session is own:
            raise RpcError(INVALID_REQUEST, "The session of this WebSocket ends with it.")
        if session.attached:
            session.ends_with_socket = True
            return {"session_id": session.id, "closed": False, "closing": True}
        await self._sessions.close(session)
        return {"session_id": session.id, "closed": True}

    async def _use_tools(self, request: RpcRequest, own: ServerSession | None) -> Any:
        """Use the tools of a session; without one, those of the first training task, for this request alone."""
        named = request.params.get("session_id")
        session = own or (self._sessions.open() if named is None else self._sessions.find(named))
        try:
            if request.method == LIST:
                return {"tools": [_mcp_tool(tool) for tool in await session.episodes.list_tools()]}
            name, arguments = request.params.get("name"), request.params.get("arguments", {})
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise RpcError(INVALID_PARAMS, "tools/call needs a name and arguments that are an object.")
            reply = await session.episodes.call_tool(name, arguments)
            if (error := reply.observation["error"]) is not None:
                raise RpcError(INVALID_PARAMS, error["message"])
            return {**reply.observation["result"], "reward": reply.reward, "done": reply.done}
        finally:
            if own is None and named is None:
                await self._sessions.close(session)


def error_response(code: int, message: str, data: Any = None, request_id: str | int | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message, "data": data or None}}


def _mcp_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"name": tool["name"], "description": tool["description"], "inputSchema": tool["input_schema"]}
