"""A server of OpenEnv's protocol whose answers a test writes, hostile ones too. It runs in a thread of the test."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

TEXT_ACTION = {
    "properties": {"metadata": {"type": "object"}, "message": {"type": "string", "description": "What to say"}},
    "required": ["message"],
}
TOOL_ACTION = {"properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}}}

Respond = Callable[["ScriptedServer", ServerConnection, dict[str, Any]], Awaitable[Any] | Any]
"""(server, socket, message) -> the reply: a dict, a text, or None for no reply."""


def observation(text: str = "", reward: Any = 0.0, done: Any = False, **fields: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"text": text, **fields}, "reward": reward, "done": done}}


def error(code: str, message: str = "no", **data: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **data}}


class ScriptedServer:
    """Counts sessions and messages. `url` is its address."""

    def __init__(self, respond: Respond, action: dict[str, Any], greet: Respond | None = None) -> None:
        self._respond, self._greet, self._action = respond, greet, action
        self.messages: list[dict[str, Any]] = []
        self.headers: list[Headers] = []
        self.open, self.most_open, self.sessions = 0, 0, 0
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the port of an earlier start if there was one."""

        async def listen() -> None:
            self._server = await serve(
                self._converse, "127.0.0.1", self.port, process_request=self._answer_http, ping_interval=None
            )
            self.port = next(iter(self._server.sockets)).getsockname()[1]

        self._call(listen())

    def stop(self) -> None:
        """Cut all connections."""

        async def cut() -> None:
            assert self._server is not None
            for connection in list(self._server.connections):
                connection.transport.abort()
            self._server.close()
            await self._server.wait_closed()

        self._call(cut())

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    @contextmanager
    def running(self) -> Iterator["ScriptedServer"]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self.start()
        try:
            yield self
        finally:
            self.stop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(20)
            self._loop.close()

    def _answer_http(self, socket: ServerConnection, request: Request) -> Response | None:
        self.headers.append(request.headers)
        if request.path == "/ws":
            return None
        bodies = {
            "/schema": {"action": self._action, "observation": {}, "state": {}},
            "/metadata": {"name": "scripted", "description": "A scripted environment."},
        }
        body = bodies.get(request.path)
        status = HTTPStatus.NOT_FOUND if body is None else HTTPStatus.OK
        data = json.dumps(body).encode()
        headers = Headers([("Content-Length", str(len(data))), ("Connection", "close")])
        return Response(status.value, status.phrase, headers, data)

    async def _converse(self, socket: ServerConnection) -> None:
        self.sessions += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if self._greet is not None:
                await self._send(socket, self._greet(self, socket, {}))
            async for text in socket:
                message = json.loads(text)
                self.messages.append(message)
                if message["type"] == "close":
                    return
                await self._send(socket, self._respond(self, socket, message))
        except ConnectionClosed:
            pass
        finally:
            self.open -= 1

    async def _send(self, socket: ServerConnection, reply: Any) -> None:
        if isinstance(reply, Awaitable):
            reply = await reply
        if reply is not None:
            await socket.send(reply if isinstance(reply, str | bytes) else json.dumps(reply))


@contextmanager
def scripted_server(
    respond: Respond, action: dict[str, Any] = TEXT_ACTION, greet: Respond | None = None
) -> Iterator[ScriptedServer]:
    with ScriptedServer(respond, action, greet).running() as server:
        yield server
