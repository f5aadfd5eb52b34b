"""The server of an environment as an ASGI application, for packages of `turnwise envs export --to openenv`."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from turnwise.envs.registry import load_spec
from turnwise.files.open_files import raise_open_file_limit
from turnwise.gateway.http_server import MAX_CONNECTIONS
from turnwise.service.openenv.access import AccessGuard
from turnwise.service.openenv.serve import read_token
from turnwise.service.openenv.served_env import ServedEnv
from turnwise.service.openenv.server import EnvServer

TOKEN_VARIABLE = "OPENENV_TOKEN"


class Application:
    """Routes of the server, and the task that closes idle sessions."""

    def __init__(self, served: ServedEnv, host: str) -> None:
        token = read_token(TOKEN_VARIABLE if os.environ.get(TOKEN_VARIABLE) else None, host)
        self._server = EnvServer(served, host=host, token=token)
        self._guarded = AccessGuard(self._server.make_app(), host, token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._guarded(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Wait for the end of the web server; sessions are closed then."""
        await receive()
        raise_open_file_limit(MAX_CONNECTIONS)
        sweeping = asyncio.create_task(self._server.sessions.close_idle())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        sweeping.cancel()
        await self._server.sessions.close_all()
        await send({"type": "lifespan.shutdown.complete"})


def make_application(environment: str, params: Mapping[str, Any], *, host: str) -> Application:
    """Return the application of an environment: a built-in name or FILE.py:Class.

    host: address that the web server listens on. Only this machine needs no token, in the variable OPENENV_TOKEN.
    """
    spec = load_spec(environment)
    checked = spec.check_params(params)
    spec.check_resources(checked)
    return Application(ServedEnv(spec=spec, params=checked), host)
