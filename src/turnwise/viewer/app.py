"""The server's pages and answers. Handlers are plain functions: they run in threads, and the loop stays free."""

from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from turnwise.core.errors import UserError
from turnwise.viewer.access import Door, Guard
from turnwise.viewer.alarms import read_alarms
from turnwise.viewer.answers import encode_answer, error_answer, json_answer
from turnwise.viewer.compare import common
from turnwise.viewer.listing import list_trajectories
from turnwise.viewer.query import Wanted
from turnwise.viewer.root import NotThere, Root
from turnwise.viewer.runs import RunList
from turnwise.viewer.settings import flat_settings
from turnwise.viewer.store import Store

STATIC = Path(__file__).parent / "static"
MAX_PAGE = 1000

Count = Annotated[int, Query(ge=0, le=2**53)]
Page = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Tasks = Annotated[int, Query(ge=1, le=10_000)]
Number = Annotated[int | None, Query(ge=-(2**63), le=2**63 - 1)]
Limit = Annotated[float | None, Query(allow_inf_nan=False)]
Text = Annotated[str, Query(max_length=10_000)]


def make_app(folder: Path, door: Door | None = None) -> FastAPI:
    """The whole server over a folder of runs, or over a single run."""
    app = FastAPI(title="turnwise", docs_url=None, redoc_url=None, openapi_url=None)
    root = Root(folder)
    add_run_answers(app, root, Store(root))
    add_pages(app)
    app.add_exception_handler(UserError, say_user_error)
    app.add_exception_handler(OSError, say_disk_error)
    app.add_exception_handler(HTTPException, say_http_error)
    app.add_exception_handler(RequestValidationError, say_bad_query)
    app.add_middleware(Guard, door=door or Door())
    return app


def add_pages(app: FastAPI) -> None:
    @app.get("/")
    def page() -> Response:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False))


def add_run_answers(app: FastAPI, root: Root, store: Store) -> None:
    """Everything under /api."""
    runs = RunList(root)

    @app.get("/api/runs")
    def list_runs(request: Request) -> Response:
        return json_answer(request, encode_answer({"root": root.name, "runs": runs.rows()}))

    @app.get("/api/config")
    def config(request: Request, run: Text) -> Response:
        return json_answer(request, encode_answer({"settings": flat_settings(root, root.run(run))}))

    @app.get("/api/keys")
    def keys(request: Request, run: Text) -> Response:
        return json_answer(request, encode_answer({"keys": store.files(run).keys()}))

    @app.get("/api/metrics")
    def metrics(
        request: Request, run: Text, after: Count = 0, keys: Text | None = None, generation: Text | None = None
    ) -> Response:
        chosen = None if keys is None else keys.split(",")
        found = store.files(run).metrics(after, chosen, generation)
        return json_answer(request, encode_answer(found, nonfinite="null"))

    @app.get("/api/alarms")
    def alarms(request: Request, run: Text) -> Response:
        return json_answer(request, encode_answer(read_alarms(root, root.run(run))))

    add_trajectory_answers(app, store)


def add_trajectory_answers(app: FastAPI, store: Store) -> None:
    @app.get("/api/trajectories")
    def trajectories(
        request: Request,
        run: Text,
        step: Number = None,
        group: Number = None,
        seed: Number = None,
        environment: Text | None = None,
        status: Text | None = None,
        model: Text | None = None,
        reward_min: Limit = None,
        reward_max: Limit = None,
        text: Text | None = None,
        sort: Text = "number",
        offset: Count = 0,
        limit: Page = 100,
        cursor: Count = 0,
    ) -> Response:
        wanted = Wanted(
            step=step,
            group=group,
            seed=seed,
            environment=environment or None,
            status=status or None,
            model=model or None,
            reward_min=reward_min,
            reward_max=reward_max,
        )
        found = list_trajectories(
            store.files(run), wanted, sort=sort, text=text or None, offset=offset, limit=limit, cursor=cursor
        )
        return json_answer(request, encode_answer(found))

    @app.get("/api/trajectory")
    def trajectory(request: Request, run: Text, number: Count) -> Response:
        return json_answer(request, store.trajectory(run, number))

    @app.get("/api/common")
    def common_tasks(request: Request, one: Text, other: Text, offset: Count = 0, limit: Tasks = 5000) -> Response:
        tables = store.files(one).table(), store.files(other).table()
        return json_answer(request, encode_answer(common(*tables, offset=offset, limit=limit)))


def say_user_error(request: Request, error: Exception) -> Response:
    return error_answer(404 if isinstance(error, NotThere) else 400, str(error))


def say_disk_error(request: Request, error: Exception) -> Response:
    """A file that could be opened and not be read, as on a network drive that went away."""
    reason = error.strerror if isinstance(error, OSError) else None
    return error_answer(404, f"cannot read the run's files ({reason or type(error).__name__}): reload the page")


def say_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return error_answer(status, f"{request.url.path}: {error.detail if isinstance(error, HTTPException) else error}")


def say_bad_query(request: Request, error: Exception) -> Response:
    first: dict[str, Any] = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    place = ".".join(str(part) for part in first.get("loc", ())[1:])
    return error_answer(400, f"{place} is not what is expected here: {first.get('msg', error)}")
