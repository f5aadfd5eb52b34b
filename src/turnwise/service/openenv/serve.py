"""Serve an environment until Ctrl-C."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from turnwise.core.errors import UserError
from turnwise.envs.runner import pluralize
from turnwise.envs.spec import EnvSpec
from turnwise.gateway.http_server import wait_for_stop
from turnwise.network.http_headers import is_local
from turnwise.network.secrets import check_variable_name
from turnwise.service.openenv.served_env import ActionForm, ServedEnv
from turnwise.service.openenv.server import EnvServer, ServerLimits
from turnwise.text.command_line import spell_command


def serve(
    spec: EnvSpec,
    params: Mapping[str, Any],
    *,
    actions: ActionForm,
    limits: ServerLimits,
    host: str,
    port: int,
    token_env: str | None,
    write: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C. Raises UserError for an environment that cannot be served."""
    spec.check_resources(params)
    spec.judges(params)
    server = EnvServer(
        ServedEnv(spec=spec, params=params, actions=actions),
        limits=limits,
        host=host,
        port=port,
        token=read_token(token_env, host),
    )
    with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        asyncio.run(_serve(server, spec, limits, write))


async def _serve(server: EnvServer, spec: EnvSpec, limits: ServerLimits, write: Callable[[str], None]) -> None:
    async with server:
        write(f"serving {spec.name} at {server.url}, {pluralize(limits.sessions, 'session')} at most  (Ctrl-C to stop)")
        write(spell_command("train", f"openenv:{server.url}"))
        await wait_for_stop()


def read_token(variable: str | None, host: str) -> str | None:
    """Return the token that clients must send. A server that other machines can reach requires one."""
    if variable is None:
        if not is_local(host):
            raise UserError(
                f"--host {host} lets other machines run the environment: name a variable with a token for them with "
                "--token-env."
            )
        return None
    try:
        token = os.environ.get(check_variable_name(variable), "")
    except ValueError as error:
        raise UserError(f"--token-env is {error}") from None
    if not token:
        raise UserError(f"--token-env {variable}: the variable is not set.")
    return token
