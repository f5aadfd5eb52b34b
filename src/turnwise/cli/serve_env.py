"""`turnwise serve-env`."""

from typing import Annotated, Literal

from cyclopts import Parameter, validators

from turnwise.cli.output import print_now
from turnwise.cli.parsing import LISTEN, EnvironmentArgument, ListenArguments, Settings, command_app, merge_settings
from turnwise.core.errors import optional_packages
from turnwise.network.ports import check_port

serve_env_app = command_app("serve-env", "ENV [OPTIONS] [--env.params.NAME VALUE]...")


@serve_env_app.default
def serve_env(
    environment: EnvironmentArgument,
    /,
    *,
    listen: ListenArguments = LISTEN,
    actions: Literal["auto", "reply", "tools"] = "auto",
    sessions: Annotated[int, Parameter(metavar="N", validator=validators.Number(gte=1))] = 256,
    idle_seconds: Annotated[float, Parameter(metavar="N", validator=validators.Number(gt=0))] = 600.0,
    step_seconds: Annotated[float, Parameter(metavar="N", validator=validators.Number(gt=0))] = 60.0,
    token_env: Annotated[str | None, Parameter(metavar="NAME")] = None,
    overrides: Settings = (),
) -> None:
    """Serve an environment over OpenEnv's protocol.

    Parameters
    ----------
    actions
        What an action is: reply (the agent's whole reply) or tools (one call of a tool). Default: tools where the
        environment has some.
    sessions
        Sessions at the same time. Default: 256.
    idle_seconds
        Time after which a session without a message is closed. Default: 600.
    step_seconds
        Longest time of a call of the environment. Default: 60.
    token_env
        Variable with the bearer token that clients must send. Default: none is required.
    """
    check_port(listen.port)
    with optional_packages("The server", "openenv", "starlette", "uvicorn", "websockets"):
        from turnwise.service.openenv.serve import serve
    from turnwise.run.configure import configure
    from turnwise.run.environment_mix import build_environment_mix
    from turnwise.service.openenv.server import ServerLimits

    config = configure(environment, overrides=merge_settings(overrides, ("env",)))
    ((spec, params),) = build_environment_mix(config.env, config.agent).with_params[:1]
    serve(
        spec,
        params,
        actions=actions,
        limits=ServerLimits(sessions=sessions, idle_s=idle_seconds, step_s=step_seconds),
        host=listen.host,
        port=listen.port,
        token_env=token_env,
        write=print_now,
    )
