"""The HTTP server: checks bearers, reads requests in any dialect, and writes replies, streams and errors."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from turnwise.core.protocols import Policy
from turnwise.core.task import EpisodeKey
from turnwise.gateway import anthropic_messages, openai_chat, openai_responses
from turnwise.gateway.access import Bearers, read_bearer
from turnwise.gateway.admin import AdminSettings, admin_routes
from turnwise.gateway.capture import GatewayEpisode
from turnwise.gateway.chat import (
    ChatDialect,
    ChatReply,
    ChatRequest,
    CountingDialect,
    ErrorKind,
    GatewayError,
    RequestError,
)
from turnwise.gateway.conversation import digest
from turnwise.gateway.fields import read_number
from turnwise.gateway.http_server import LocalServer, server_config
from turnwise.gateway.openai_responses import ResponseHistory
from turnwise.gateway.request_body import BodyReader, check_request, is_long_body, is_long_request, parse_json
from turnwise.gateway.sessions import SessionPool
from turnwise.gateway.store import CallStore
from turnwise.gateway.workers import Workers
from turnwise.network.ports import listen, listen_on_path
from turnwise.render.renderer import Renderer
from turnwise.rollout.episode import Limits

DIALECTS: dict[str, ChatDialect] = {
    "/v1/chat/completions": openai_chat,
    "/v1/responses": openai_responses,
    "/v1/messages": anthropic_messages,
}
"""Path -> dialect."""
TOKEN_COUNTS = {"/v1/responses/input_tokens": openai_responses, "/v1/messages/count_tokens": anthropic_messages}
"""Path -> dialect whose requests are counted there."""
KEEP_ALIVE_S = 10.0
"""Seconds of waiting after which a stream begins with comments, so that proxies and clients do not give up."""
EVENT_STREAM = "text/event-stream"
REPLY_ID = re.compile("(?:chatcmpl-|resp_|msg_)?(.*)", re.DOTALL)
"""Id of a reply in any dialect; the group is the id of its call."""
KEPT_REFUSALS = 20

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
        store: Path | None,
        *,
        max_sessions: int,
        model: str = "turnwise",
        host: str = "127.0.0.1",
        port: int = 0,
        admin: AdminSettings | None = None,
        sockets: Path | None = None,
    ) -> None:
        """`store`: SQLite file of the calls; None keeps them in memory.

        `max_sessions`: contexts that the policy keeps open at the same time. `limits`: of episodes without their own.
        `model`: name in replies, whatever the caller asks for. `port`: 0 is any free port. `admin`: adds routes that
        open and close episodes. `sockets`: folder for a Unix socket, for agents without a network.
        """
        self.model, self._host, self._port, self._admin = model, host, port, admin
        self._sockets = sockets
        self.socket = "" if sockets is None else f"gateway-{uuid4().hex[:8]}.sock"
        """Name of its Unix socket; empty if it has none."""
        self._policy, self._renderer, self._limits = policy, renderer, limits
        self._store_file, self._max_sessions = store, max_sessions
        self._bearers, self._bodies = Bearers(), BodyReader()
        self.refusals: deque[str] = deque(maxlen=KEPT_REFUSALS)
        """Last requests without a valid bearer or route, such as "POST /chat/completions (404)"."""
        self._routes: Sequence[Route] = ()

    def listen_at(self, host: str, port: int, routes: Sequence[Route]) -> None:
        """Set the address, and routes besides those of agents, before the gateway is opened."""
        self._host, self._port, self._routes = host, port, routes

    async def __aenter__(self) -> "Gateway":
        listeners = [listen(self._host, self._port)]
        if self._sockets is not None:
            listeners.append(listen_on_path(self._sockets / self.socket))
        self._store = CallStore(self._store_file)
        self._sessions = SessionPool(self._policy, self._max_sessions)
        self._workers = Workers()
        self._server = LocalServer(server_config(self._make_app()))
        await self._server.start(*listeners)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._sessions.resume()
        for episode in self.episodes():
            await self.close_episode(episode)
        await self._server.close()
        if self._sockets is not None:
            (self._sockets / self.socket).unlink(missing_ok=True)
        self._workers.close()
        self._store.close()

    @property
    def url(self) -> str:
        """Address without a path. The OpenAI clients' base URL is `url`/v1, the Anthropic clients' is `url`."""
        return self._server.url

    def episodes(self) -> list[GatewayEpisode]:
        """Return the open episodes."""
        return self._bearers.episodes()

    async def open_episode(
        self,
        key: EpisodeKey,
        limits: Limits | None = None,
        *,
        bearer: str | None = None,
        restore: bool = False,
        keep: int | None = None,
    ) -> GatewayEpisode:
        """Open an episode with a new bearer, or with the given one.

        `restore`: continue what an earlier process recorded under this key. Otherwise that is deleted.
        `keep`: number of branches to keep in memory, for an episode without end; None: all.
        """
        episode = GatewayEpisode(
            key,
            bearer=bearer or self._bearers.new(),
            renderer=self._renderer,
            limits=limits or self._limits,
            sessions=self._sessions,
            store=self._store,
            workers=self._workers,
            keep=keep,
        )
        await (episode.restore() if restore else self._store.clear(episode.id))
        self._bearers.add(episode)
        return episode

    async def close_episode(self, episode: GatewayEpisode) -> None:
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
        routes = list[Route]()
        for base in ("", "/v1"):  # Anthropic's clients append /v1 to any base URL, also to that of OpenAI's
            routes += [Route(base + path, self._chat_route(api), methods=["POST"]) for path, api in DIALECTS.items()]
            routes += [
                Route(base + path, self._count_route(api), methods=["POST"]) for path, api in TOKEN_COUNTS.items()
            ]
        routes += [
            Route("/v1/models", self._guarded(self._list_models), methods=["GET"]),
            Route("/v1/turnwise/reward", self._guarded(self._set_reward), methods=["POST"]),
        ]
        if self._admin is not None:
            routes += admin_routes(self, self._admin)
        return Starlette(
            routes=[*routes, *self._routes], exception_handlers={HTTPException: self._respond_to_http_error}
        )

    def _chat_route(self, dialect: ChatDialect) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request, episode: GatewayEpisode) -> Response:
            return await self._chat(request, episode, dialect)

        return self._guarded(answer, dialect)

    def _guarded(
        self, answer: Callable[[Request, GatewayEpisode], Awaitable[Response]], dialect: ChatDialect = openai_chat
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a route that finds the caller's episode and writes errors in the dialect."""

        async def route(request: Request) -> Response:
            episode = None
            try:
                episode = self._bearers.find(read_bearer(request.headers))
                return await answer(request, episode)
            except Exception as failure:
                error = as_gateway_error(failure)
                if error.kind == "authentication":
                    self._refuse(request, error.status)
                elif episode is not None and error.status < 500:
                    episode.refusal = error.message
                return JSONResponse(dialect.error(error.status, error.kind, error.message), status_code=error.status)

        return route

    def _refuse(self, request: Request, status: int) -> None:
        self.refusals.append(f"{request.method} {request.url.path[:200]} ({status})")

    def _respond_to_http_error(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        kind: ErrorKind = "not_found" if status == 404 else "invalid_request"
        self._refuse(request, status)
        message = f"{request.method} {request.url.path}: the gateway has no such route"
        dialect: ChatDialect = anthropic_messages if "/v1/messages" in request.url.path else openai_chat
        return JSONResponse(dialect.error(status, kind, message), status_code=status)

    def _count_route(self, dialect: CountingDialect) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request, episode: GatewayEpisode) -> Response:
            chat = await self._read_chat(request, episode, dialect)
            return JSONResponse(dialect.token_count(await episode.count(chat)))

        return self._guarded(answer, dialect)

    async def _chat(self, request: Request, episode: GatewayEpisode, dialect: ChatDialect) -> Response:
        chat = await self._read_chat(request, episode, dialect)
        reply = asyncio.ensure_future(episode.reply(chat, _retry_count(request.headers)))
        if not chat.stream:
            return JSONResponse(dialect.response(chat, await reply, self.model))
        await asyncio.wait({reply}, timeout=KEEP_ALIVE_S)
        if reply.done():  # errors have their own status
            return Response(b"".join(dialect.events(chat, reply.result(), self.model)), media_type=EVENT_STREAM)
        return StreamingResponse(self._stream(chat, reply, dialect), media_type=EVENT_STREAM)

    async def _read_chat(self, request: Request, episode: GatewayEpisode, dialect: ChatDialect) -> ChatRequest:
        path = request.url.path
        async with self._bodies.read(request) as body:
            return await self._workers.read(is_long_body(body), read_chat, path, body, episode.history, dialect)

    async def _stream(
        self, chat: ChatRequest, reply: "asyncio.Future[tuple[ChatReply, ...]]", dialect: ChatDialect
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

    async def _list_models(self, request: Request, episode: GatewayEpisode) -> Response:
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "turnwise"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _set_reward(self, request: Request, episode: GatewayEpisode) -> Response:
        async with self._bodies.read(request) as given:
            body = parse_json(given)
        reward, call = read_number(body, "reward"), body.get("call", "")
        if reward is None:
            raise RequestError("reward", "must be a number")
        if not isinstance(call, str):
            raise RequestError("call", "must be the id of a reply")
        await episode.set_reward(reward, REPLY_ID.sub(r"\1", call, count=1))
        return JSONResponse({"reward": reward, "call": call})


def read_chat(path: str, body: bytes, history: ResponseHistory, dialect: ChatDialect) -> ChatRequest:
    """Return the request of a body. Raises GatewayError."""
    chat = dialect.parse(history.resolve(parse_json(body)))
    check_request(chat)
    return replace(chat, digest=digest(path.encode(), body), is_long=is_long_request(chat, body))


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
