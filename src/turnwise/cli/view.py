"""`turnwise view`, `turnwise watch` and `turnwise report`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_now
from turnwise.cli.parsing import command_app
from turnwise.core.errors import UserError, optional_packages

view_app = command_app("view", "[FOLDER] [--port N] [--open] [--play]")
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
    play: bool = False,
    jobs: Annotated[int | None, Parameter(metavar="N")] = None,
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
    play
        Open the studio: also start, stop, resume and fork runs, label episodes and talk to checkpoints. Always
        requires the token.
    jobs
        With --play: runs that train at the same time. Default: 1.
    """
    if jobs is not None and not play:
        raise UserError("--jobs has an effect with --play. Add it, or remove --jobs.")
    with optional_packages("The viewer", "view", "fastapi", "starlette", "uvicorn"):
        from turnwise.viewer.server import serve
    if play:
        from turnwise.studio.server import serve_studio

        slots = 1 if jobs is None else jobs
        serve_studio(folder, host=host, port=port, token=token, open_browser=open_browser, slots=slots, write=print_now)
        return
    serve(folder, host=host, port=port, token=token, open_browser=open_browser, write=print_now)


@watch_app.default
def watch(run: str, /) -> None:
    """Plot a running run's curves in the terminal.

    Parameters
    ----------
    run
        Run: its folder, or its name in runs/.
    """
    from turnwise.files.disk import check_readable
    from turnwise.files.run_folders import METRICS_FILE, find_run_folder

    folder = find_run_folder(run)  # before torch is imported
    check_readable(folder / METRICS_FILE)
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
    from turnwise.files.run_folders import find_run_or_evaluation

    folder = find_run_or_evaluation(run)  # before torch is imported
    from turnwise.report.html_report import write_report

    print_line(f"wrote {write_report(folder, out)}")
