"""The HTTP server: checks bearers, reads requests in any dialect, and writes replies, streams and errors."""

import asyncio
import logging
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from turnwise.core.errors import UserError
from turnwise.core.protocols import Policy
from turnwise.core.task import EpisodeKey
from turnwise.gateway import openai_chat
from turnwise.gateway.access import Bearers, read_bearer
from turnwise.gateway.capture import Episode
from turnwise.gateway.chat import ChatReply, ChatRequest, Dialect, ErrorKind, GatewayError, RequestError
from turnwise.gateway.request_body import read_body, read_json
from turnwise.gateway.sessions import SessionPool
from turnwise.gateway.store import CallStore
from turnwise.render.renderer import Renderer
from turnwise.rollout.episode import Limits

DIALECTS: dict[str, Dialect] = {"/v1/chat/completions": openai_chat}
"""Path -> dialect."""
KEEP_ALIVE_S = 10.0
"""Seconds of waiting after which a stream begins with comments, so that proxies and clients do not give up."""
EVENT_STREAM = "text/event-stream"

log = logging.getLogger("turnwise")


class Gateway:
    """Serves the model to agents: `async with Gateway(...) as gateway: episode = await gateway.open_episode(key)`.

    It runs in the current event loop. Agents use `url` and the episode's bearer as API key.
    """

    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        limits: Limits,
        store: CallStore,
        *,
        max_sessions: int,
        model: str = "turnwise",
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """`max_sessions`: contexts that the policy keeps open at the same time.

        `model`: name in replies, whatever the caller asks for. `port`: 0 is any free port.
        """
        self.model, self._host, self._port = model, host, port
        self._renderer, self._limits, self._store = renderer, limits, store
        self._sessions = SessionPool(policy, max_sessions)
        self._bearers = Bearers()

    async def __aenter__(self) -> "Gateway":
        self._listener = _listen(self._host, self._port)
        config = uvicorn.Config(
            self._make_app(), log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none"
        )
        self._server = _QuietServer(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.001)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sessions.resume()
        for episode in self._bearers.episodes():
            await self.close_episode(episode)
        self._server.should_exit = self._server.force_exit = True
        await self._serving
        self._listener.close()

    @property
    def url(self) -> str:
        """Address without a path. The OpenAI clients' base URL is `url`/v1, the Anthropic clients' is `url`."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def open_episode(self, key: EpisodeKey) -> Episode:
        """Open an episode with a new bearer. What an interrupted attempt with the same key left is deleted."""
        episode = Episode(
            key,
            bearer=self._bearers.new(),
            renderer=self._renderer,
            limits=self._limits,
            sessions=self._sessions,
            store=self._store,
        )
        await self._store.clear(episode.id)
        self._bearers.add(episode)
        return episode

    async def close_episode(self, episode: Episode) -> None:
        """Close an episode. Later calls with its bearer get status 409."""
        self._bearers.revoke(episode)
        await episode.close()

    async def pause(self) -> None:
        """Wait for running calls and block new ones, for a weight update."""
        await self._sessions.pause()

    def resume(self) -> None:
        """Let blocked calls continue."""
        self._sessions.resume()

    def _make_app(self) -> Starlette:
        routes = [Route(path, self._chat_route(dialect), methods=["POST"]) for path, dialect in DIALECTS.items()]
        routes += [
            Route("/v1/models", self._guarded(self._list_models), methods=["GET"]),
            Route("/v1/turnwise/reward", self._guarded(self._set_reward), methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _respond_to_http_error})

    def _chat_route(self, dialect: Dialect) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request, episode: Episode) -> Response:
            return await self._chat(request, episode, dialect)

        return self._guarded(answer, dialect)

    def _guarded(
        self, answer: Callable[[Request, Episode], Awaitable[Response]], dialect: Dialect = openai_chat
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a route that finds the caller's episode and writes errors in the dialect."""

        async def route(request: Request) -> Response:
            try:
                return await answer(request, self._bearers.find(read_bearer(request.headers)))
            except Exception as failure:
                error = as_gateway_error(failure)
                return JSONResponse(dialect.error(error.status, error.kind, error.message), status_code=error.status)

        return route

    async def _chat(self, request: Request, episode: Episode, dialect: Dialect) -> Response:
        body = await read_body(request)
        chat = replace(dialect.parse(await read_json(body)), body=request.url.path.encode() + b"\n" + body)
        reply = asyncio.ensure_future(episode.reply(chat, _retry_count(request.headers)))
        if not chat.stream:
            return JSONResponse(dialect.response(chat, await reply, self.model))
        await asyncio.wait({reply}, timeout=KEEP_ALIVE_S)
        if reply.done():  # errors have their own status
            return Response(b"".join(dialect.events(chat, reply.result(), self.model)), media_type=EVENT_STREAM)
        return StreamingResponse(self._stream(chat, reply, dialect), media_type=EVENT_STREAM)

    async def _stream(
        self, chat: ChatRequest, reply: "asyncio.Future[tuple[ChatReply, ...]]", dialect: Dialect
    ) -> AsyncIterator[bytes]:
        """Yield comments until the reply is there."""
        while not reply.done():
            yield b": keep-alive\n\n"
            await asyncio.wait({reply}, timeout=KEEP_ALIVE_S)
        try:
            replies = reply.result()
        except Exception as failure:
            error = as_gateway_error(failure)
            yield dialect.error_event(error.status, error.kind, error.message)
            return
        for event in dialect.events(chat, replies, self.model):
            yield event

    async def _list_models(self, request: Request, episode: Episode) -> Response:
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "turnwise"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _set_reward(self, request: Request, episode: Episode) -> Response:
        body = await read_json(await read_body(request))
        reward, call = body.get("reward"), body.get("call", "")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise RequestError("reward", "must be a finite number")
        if not isinstance(call, str):
            raise RequestError("call", "must be the id of a call")
        await episode.set_reward(float(reward), call)
        return JSONResponse({"reward": reward, "call": call})


class _QuietServer(uvicorn.Server):
    """A server that leaves the process's signal handlers alone."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def as_gateway_error(failure: Exception) -> GatewayError:
    """Return the error for the caller. Unexpected failures are logged; SDKs retry their status."""
    if isinstance(failure, GatewayError):
        return failure
    log.error("gateway: a call failed", exc_info=failure)
    return GatewayError(
        500, "internal", f"The model could not answer ({type(failure).__name__}): see the gateway's log."
    )


def _retry_count(headers: Mapping[str, str]) -> int:
    """Return how often the SDK has retried the request."""
    count = headers.get("x-stainless-retry-count", "")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 6 else 0


def _respond_to_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    kind: ErrorKind = "not_found" if status == 404 else "invalid_request"
    return JSONResponse(
        openai_chat.error(status, kind, f"{request.method} {request.url.path}: the gateway has no such route"),
        status_code=status,
    )


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        raise UserError(f"Cannot listen on {host} port {port} ({error}): choose another --host or --port") from None
    return listener
