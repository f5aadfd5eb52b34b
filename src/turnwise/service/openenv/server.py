"""Serve an environment over OpenEnv's protocol: WebSocket sessions, HTTP, MCP and the routes of tasks."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from turnwise.concurrency.blocking import allow_interrupts
from turnwise.config.version import installed_version
from turnwise.gateway.chat import GatewayError
from turnwise.gateway.http_server import LocalServer, server_config
from turnwise.gateway.request_body import BodyReader, parse_json
from turnwise.network.ports import listen
from turnwise.service.openenv.access import AccessGuard
from turnwise.service.openenv.mcp import PARSE_ERROR, McpServer, error_response
from turnwise.service.openenv.openapi import describe_api
from turnwise.service.openenv.served_env import ServedEnv
from turnwise.service.openenv.sessions import ServerSession, Sessions
from turnwise.service.openenv.socket import SOCKET_OPTIONS
from turnwise.service.openenv.tasks import TaskRoutes
from turnwise.service.openenv.wire import (
    CAPACITY_REACHED,
    EXECUTION_ERROR,
    MAX_MESSAGE_BYTES,
    SESSION_ERROR,
    UNKNOWN_TYPE,
    VALIDATION_ERROR,
    ProtocolError,
    invalid,
    read_message,
)
from turnwise.text.truncation import first_line

STATUS = {CAPACITY_REACHED: 503, EXECUTION_ERROR: 500, SESSION_ERROR: 500, VALIDATION_ERROR: 422}
"""HTTP status of errors; others are 400."""
Converse = Callable[[ServerSession, dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""(session, message) -> the reply; None ends the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of what clients may take."""

    sessions: int = 256
    """Sessions at the same time."""
    idle_s: float = 600.0
    """Time after which a session without a message is closed."""
    step_s: float = 60.0
    """Longest time of a call of the environment."""


DEFAULT_LIMITS = ServerLimits()


class EnvServer:
    """`async with EnvServer(ServedEnv(...)) as server` serves at `server.url` in the current event loop."""

    def __init__(
        self,
        served: ServedEnv,
        *,
        limits: ServerLimits = DEFAULT_LIMITS,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        self._served, self._host, self._port, self._token = served, host, port, token
        self.sessions = Sessions(served, limit=limits.sessions, idle_s=limits.idle_s, step_s=limits.step_s)
        self._mcp, self._tasks = McpServer(served, self.sessions), TaskRoutes(served)
        self._bodies = BodyReader(MAX_MESSAGE_BYTES)

    async def __aenter__(self) -> "EnvServer":
        listener = listen(self._host, self._port)
        self._interrupts = allow_interrupts()
        self._interrupts.__enter__()
        app = AccessGuard(self.make_app(), self._host, self._token)
        self._server = LocalServer(server_config(app, **SOCKET_OPTIONS))
        self._sweeping = asyncio.create_task(self.sessions.close_idle())
        await self._server.start(listener)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._sweeping.cancel()
        await self.sessions.close_all()
        await self._server.close()
        self._interrupts.__exit__(None, None, None)

    @property
    def url(self) -> str:
        return self._server.url

    def make_app(self) -> Starlette:
        """Return the routes, without a guard."""
        spec, served, version = self._served.spec, self._served, installed_version()
        facts: dict[str, Any] = {
            "/health": {"status": "healthy"},
            "/metadata": {"name": spec.name, "description": served.rules, "version": version},
            "/schema": served.schemas(),
            "/openapi.json": describe_api(spec.name, version),
            "/list_environments": [spec.name],
            "/state": {"episode_id": None, "step_count": 0, "split": None, "index": None},
        }
        routes: list[Any] = [Route(path, _constant(fact), methods=["GET"]) for path, fact in facts.items()]
        routes += [
            Route("/reset", self._http(self._reset), methods=["POST"]),
            Route("/step", self._http(self._step), methods=["POST"]),
            Route("/mcp", self._answer_mcp, methods=["POST"]),
            Route("/{env}/splits", self._list_splits, methods=["GET"]),
            Route("/{env}/{route}", self._answer_tasks, methods=["POST"]),
            WebSocketRoute("/ws", self._serve_session),
            WebSocketRoute("/mcp", self._serve_mcp),
        ]
        return Starlette(routes=routes)

    # WebSockets

    async def _serve_session(self, socket: WebSocket) -> None:
        async def converse(session: ServerSession, message: dict[str, Any]) -> dict[str, Any] | None:
            match message.get("type"):
                case "reset":
                    return _observation((await session.episodes.reset(message.get("data", {}))).data)
                case "step":
                    return _observation((await session.episodes.step(message.get("data"))).data)
                case "state":
                    return {"type": "state", "data": session.episodes.state()}
                case "mcp":
                    return {"type": "mcp", "data": await self._mcp.answer(message.get("data"), session)}
                case "close":
                    return None
            raise ProtocolError(UNKNOWN_TYPE, f"Unknown message type: {str(message.get('type'))[:64]}")

        await self._hold(socket, converse, ProtocolError.reply)

    async def _serve_mcp(self, socket: WebSocket) -> None:
        async def converse(session: ServerSession, message: dict[str, Any]) -> dict[str, Any]:
            return await self._mcp.answer(message, session)

        await self._hold(socket, converse, lambda error: error_response(PARSE_ERROR, str(error)))

    async def _hold(
        self, socket: WebSocket, converse: Converse, describe: Callable[[ProtocolError], dict[str, Any]]
    ) -> None:
        """Hold a session for a socket, until the client closes it, says nothing for too long, or goes away."""
        await socket.accept()
        with suppress(WebSocketDisconnect, RuntimeError):  # the client is gone
            try:
                async with self._attached(socket.query_params.get("session_id")) as session:
                    while await self._converse(socket, session, converse, describe):
                        pass
            except ProtocolError as error:
                await socket.send_text(json.dumps(describe(error)))
            await socket.close()

    async def _converse(
        self,
        socket: WebSocket,
        session: ServerSession,
        converse: Converse,
        describe: Callable[[ProtocolError], dict[str, Any]],
    ) -> bool:
        """Answer one message. Returns False at the end of the session."""
        try:
            async with asyncio.timeout(self.sessions.idle_s):
                event = await socket.receive()
        except TimeoutError:
            raise ProtocolError(
                SESSION_ERROR, f"The session was idle for more than {self.sessions.idle_s:g} s."
            ) from None
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        try:
            reply = await converse(session, read_message(event.get("text", event.get("bytes"))))
        except ProtocolError as error:
            reply = describe(error)
        if reply is not None:
            await socket.send_text(json.dumps(reply, allow_nan=False))
        return reply is not None

    @asynccontextmanager
    async def _attached(self, session_id: str | None) -> Any:
        """Yield a session of a socket: a new one, which ends with it, or the one of the id."""
        session = self.sessions.open() if session_id is None else self.sessions.attach(session_id)
        session.attached = True
        session.ends_with_socket = session_id is None
        try:
            yield session
        finally:
            session.attached = False
            if session.ends_with_socket:
                await self.sessions.close(session)

    # HTTP

    def _http(
        self, answer: Callable[[ServerSession, dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a route whose answer has a session of its own."""

        async def respond(request: Request) -> Response:
            try:
                body = await self._read(request)
                session = self.sessions.open()
                try:
                    return JSONResponse(await answer(session, body))
                finally:
                    await self.sessions.close(session)
            except ProtocolError as error:
                return _http_error(error)
            except GatewayError as error:
                return JSONResponse({"detail": error.message}, status_code=error.status)

        return respond

    async def _read(self, request: Request) -> dict[str, Any]:
        async with self._bodies.read(request) as body:
            return parse_json(body) if body else {}

    async def _reset(self, session: ServerSession, body: dict[str, Any]) -> dict[str, Any]:
        return (await session.episodes.reset(body)).data

    async def _step(self, session: ServerSession, body: dict[str, Any]) -> dict[str, Any]:
        """Step in the first training task: over HTTP, every call has an environment of its own."""
        if "action" not in body:
            raise invalid("action", "Field required")
        await session.episodes.start_first()
        return (await session.episodes.step(body["action"])).data

    async def _answer_mcp(self, request: Request) -> Response:
        try:
            async with self._bodies.read(request) as body:
                message = parse_json(body)
        except GatewayError as error:
            return JSONResponse(error_response(PARSE_ERROR, first_line(error.message)))
        return JSONResponse(await self._mcp.answer(message))

    async def _list_splits(self, request: Request) -> Response:
        return self._unknown_env(request) or JSONResponse(self._tasks.list_splits())

    async def _answer_tasks(self, request: Request) -> Response:
        if (unknown := self._unknown_env(request)) is not None:
            return unknown
        try:
            return JSONResponse(self._tasks.answer(request.path_params["route"], await self._read(request)))
        except KeyError:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        except ProtocolError as error:
            return _http_error(error)
        except GatewayError as error:
            return JSONResponse({"detail": error.message}, status_code=error.status)

    def _unknown_env(self, request: Request) -> Response | None:
        name = request.path_params["env"]
        if name.lower() == self._served.spec.name.lower():
            return None
        return JSONResponse({"detail": f"unknown environment {name[:64]!r}"}, status_code=404)


def _constant(answer: Any) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        return JSONResponse(answer)

    return respond


def _observation(data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "observation", "data": data}


def _http_error(error: ProtocolError) -> Response:
    detail: Any = error.data.get("errors") or str(error)
    return JSONResponse({"detail": detail, "code": error.code}, status_code=STATUS.get(error.code, 400))
