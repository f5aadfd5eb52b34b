"""`turnwise view`, `turnwise watch` and `turnwise report`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_now
from turnwise.cli.parsing import command_app
from turnwise.core.errors import UserError

OPTIONAL_PACKAGES = ("fastapi", "starlette", "uvicorn")

view_app = command_app("view", "[FOLDER] [--port N] [--open]")
watch_app = command_app("watch", "RUN")
report_app = command_app("report", "RUN [--out FILE]")


@view_app.default
def view(
    folder: Annotated[Path, Parameter(name="FOLDER")] = Path("runs"),
    /,
    *,
    port: Annotated[int, Parameter(metavar="N")] = 7860,
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1",
    token: Annotated[str | None, Parameter(metavar="TEXT")] = None,
    open_browser: Annotated[bool, Parameter(name="--open")] = False,
) -> None:
    """Browse runs in a web browser.

    Parameters
    ----------
    folder
        Folder of runs, or one run. Default: runs.
    port
        Port to listen on; 0 for any free port. Default: 7860. From another machine: ssh -L 7860:localhost:7860 MACHINE.
    host
        Address to listen on. Default: 127.0.0.1, this machine only. Other addresses require a token.
    token
        Access token. Default: a random one where a token is required.
    open_browser
        Open the page in the browser.
    """
    try:
        from turnwise.viewer.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OPTIONAL_PACKAGES:
            raise
        raise UserError(f"The viewer needs {error.name}: pip install 'turnwise[view]'") from error
    serve(folder, host=host, port=port, token=token, open_browser=open_browser, write=print_now)


@watch_app.default
def watch(run: str, /) -> None:
    """Plot a running run's curves in the terminal.

    Parameters
    ----------
    run
        Run: its folder, or its name in runs/.
    """
    from turnwise.files.run_folders import find_run_folder

    folder = find_run_folder(run)  # before torch is imported
    from turnwise.report.terminal import make_console
    from turnwise.report.watch import watch as watch_run

    watch_run(folder, make_console())


@report_app.default
def report(run: str, /, *, out: Annotated[Path | None, Parameter(metavar="FILE")] = None) -> None:
    """Write a run or an evaluation as one HTML file.

    Parameters
    ----------
    run
        Run or evaluation: its folder, or its name in runs/.
    out
        HTML file to write. Default: report.html in the folder.
    """
    from turnwise.record.run_folder import find_folder
    from turnwise.report.html_report import write_report

    print_line(f"wrote {write_report(find_folder(run), out)}")
