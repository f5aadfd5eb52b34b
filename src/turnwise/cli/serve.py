"""`turnwise serve`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.output import print_now
from turnwise.cli.parsing import Settings, command_app, merge_settings
from turnwise.core.errors import UserError

OPTIONAL_PACKAGES = ("starlette", "uvicorn")

serve_app = command_app("serve", "--model.name RUN|MODEL [OPTIONS] [--SECTION.KEY VALUE]...")


@serve_app.default
def serve(
    *,
    port: Annotated[int, Parameter(metavar="N")] = 8000,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
    api_key: Annotated[str | None, Parameter(metavar="TEXT")] = None,
    admin_token: Annotated[str | None, Parameter(metavar="TEXT")] = None,
    out: Annotated[Path, Parameter(metavar="FILE")] = Path("runs/serve/calls.sqlite"),
    overrides: Settings = (),
) -> None:
    """Serve a model to agents.

    Parameters
    ----------
    port
        Port to listen on; 0 for any free port. Default: 8000.
    host
        Address to listen on. Default: 127.0.0.1, this machine only.
    api_key
        API key of the agents. Default: a random one. With the same key, a restarted server continues earlier calls.
    admin_token
        Token of the routes that open and close episodes. Default: there are no such routes.
    out
        SQLite file of the recorded calls. Default: runs/serve/calls.sqlite.
    """
    try:
        from turnwise.recipes.serving import SECTIONS
        from turnwise.recipes.serving import serve as serve_model
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OPTIONAL_PACKAGES:
            raise
        raise UserError(f"The gateway needs {error.name}: pip install 'turnwise[gateway]'") from error
    settings = merge_settings(overrides, SECTIONS)
    serve_model(settings, host=host, port=port, api_key=api_key, admin_token=admin_token, out=out, write=print_now)
