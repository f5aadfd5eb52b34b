"""Start the viewer with the studio: `turnwise view --play`."""

from collections.abc import Callable
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.files.disk import wrap_disk_errors
from turnwise.studio.agents import Agents
from turnwise.studio.queue import Queue
from turnwise.studio.routes import make_routes
from turnwise.viewer.extension import Extension
from turnwise.viewer.server import serve
from turnwise.viewer.viewed_folder import is_run

NAME = "studio"
STATIC = Path(__file__).parent / "static"


def serve_studio(
    folder: Path,
    *,
    host: str,
    port: int,
    token: str | None,
    open_browser: bool,
    slots: int,
    write: Callable[[str], None],
) -> None:
    """Serve a folder of runs until Ctrl-C. `slots`: runs that train at the same time. Running ones go on afterwards."""
    if slots < 1:
        raise UserError(f"--jobs {slots}: must be the number of runs that train at the same time, 1 or more.")
    if is_run(str(folder)):
        raise UserError(f"{folder} is a single run, and --play starts others. Give the folder of your runs.")
    with wrap_disk_errors(folder, "start the studio again"):
        folder.mkdir(parents=True, exist_ok=True)
    with Queue(folder, slots=slots) as queue, Agents() as agents:
        extension = Extension(name=NAME, static=STATIC, routes=make_routes(folder, queue, agents))
        serve(folder, host=host, port=port, token=token, open_browser=open_browser, write=write, extension=extension)
        going_on = [job for job in queue.jobs() if job.status.active]
    for job in going_on:
        write(f"job {job.number} goes on without the studio: {job.run}")
