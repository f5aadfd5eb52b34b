"""Routes for whoever runs the gateway: open and close episodes. They exist only if the gateway has an admin token.

POST   /v1/turnwise/episodes          -> {"id", "api_key"}
DELETE /v1/turnwise/episodes/{id}     -> {"id", "calls", "reward"}
"""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from turnwise.core.task import EpisodeKey
from turnwise.gateway import openai_chat
from turnwise.gateway.access import read_bearer
from turnwise.gateway.capture import GatewayEpisode
from turnwise.gateway.chat import GatewayError

Handler = Callable[[Request], Awaitable[Response]]


class OpenEpisodes(Protocol):
    """The gateway, as the routes use it."""

    def episodes(self) -> list[GatewayEpisode]: ...
    async def open_episode(self, key: EpisodeKey) -> GatewayEpisode: ...
    async def close_episode(self, episode: GatewayEpisode) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """Access to the routes."""

    token: str
    make_key: Callable[[int], EpisodeKey]
    """Key of the n-th episode that they open, counted from 1."""


def admin_routes(gateway: OpenEpisodes, settings: AdminSettings) -> list[Route]:
    """Return the routes."""
    numbers = count(1)

    async def open_episode(request: Request) -> Response:
        episode = await gateway.open_episode(settings.make_key(next(numbers)))
        return JSONResponse({"id": episode.id, "api_key": episode.bearer}, status_code=201)

    async def close_episode(request: Request) -> Response:
        matching = [episode for episode in gateway.episodes() if episode.id == request.path_params["id"]]
        if not matching:
            raise GatewayError(404, "not_found", f"There is no open episode {request.path_params['id'][:80]}.")
        await gateway.close_episode(matching[0])
        return JSONResponse({"id": matching[0].id, "calls": matching[0].calls, "reward": matching[0].posted})

    return [
        Route("/v1/turnwise/episodes", guard(open_episode, settings.token), methods=["POST"]),
        Route("/v1/turnwise/episodes/{id}", guard(close_episode, settings.token), methods=["DELETE"]),
    ]


def guard(handle: Handler, token: str) -> Handler:
    """Return a route that needs the token and answers errors in OpenAI's form."""

    async def route(request: Request) -> Response:
        try:
            if not hmac.compare_digest(read_bearer(request.headers).encode(), token.encode()):
                raise GatewayError(401, "authentication", "The admin token is wrong.")
            return await handle(request)
        except GatewayError as error:
            return JSONResponse(openai_chat.error(error.status, error.kind, error.message), status_code=error.status)

    return route
