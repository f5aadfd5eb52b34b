"""turnwise view"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import command_app
from turnwise.cli.show import line
from turnwise.core.errors import UserError

NEEDED = ("fastapi", "starlette", "uvicorn")

app = command_app("view", "[FOLDER] [--port N] [--open]")


@app.default
def view(
    folder: Annotated[Path, Parameter(name="FOLDER")] = Path("runs"),
    /,
    *,
    port: Annotated[int, Parameter(metavar="N")] = 7860,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
    token: Annotated[str | None, Parameter(metavar="TEXT")] = None,
    open_browser: Annotated[bool, Parameter(name="--open")] = False,
) -> None:
    """Show runs in a browser.

    Parameters
    ----------
    folder
        The folder of runs, or one run; left out, runs.
    port
        Where it listens; left out, 7860. 0: any that is free. From afar: ssh -L 7860:localhost:7860 MACHINE.
    host
        Left out, 127.0.0.1: this machine alone. On any other address a token is asked for.
    token
        What is asked for; left out, one is made where one is needed.
    open_browser
        Open the page.
    """
    try:
        from turnwise.viewer.serve import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise UserError(f"the viewer needs {error.name}: pip install 'turnwise[view]'") from error
    serve(folder, host=host, port=port, token=token, open_browser=open_browser, say=say)


def say(text: str) -> None:
    """At once: who pipes the output waits for the address."""
    line(text)
    sys.stdout.flush()
