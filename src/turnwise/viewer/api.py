"""The web application: the page, its static files and the JSON API.

Handlers are plain functions, which FastAPI runs in threads, so that a slow disk does not block the event loop.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from turnwise.core.errors import UserError
from turnwise.pictures.image import MAX_IMAGE_BYTES, PNG_SIGNATURE
from turnwise.record.catalogue import METRICS
from turnwise.record.images import IMAGES_FOLDER, image_file_name
from turnwise.viewer.access import AccessMiddleware, AccessPolicy
from turnwise.viewer.explanations import Explanations
from turnwise.viewer.extension import Extension, add_extension
from turnwise.viewer.json_io import encode_json, error_response, json_response
from turnwise.viewer.metrics import read_alarms
from turnwise.viewer.run_page import describe_run
from turnwise.viewer.runs import RunList, read_summary
from turnwise.viewer.search import TrajectoryQuery, list_trajectories
from turnwise.viewer.settings import settings_and_defaults
from turnwise.viewer.spans import MAX_SPAN_STEPS
from turnwise.viewer.state_html import respond_with_html
from turnwise.viewer.store import RunStore
from turnwise.viewer.table import Count, Text, match_tasks
from turnwise.viewer.viewed_folder import FileNotServed, ViewedFolder

STATIC = Path(__file__).parent / "static"

SpanSteps = Annotated[int, Query(ge=1, le=MAX_SPAN_STEPS)]
TaskCount = Annotated[int, Query(ge=1, le=10_000)]
TurnIndex = Annotated[int, Query(ge=-1, le=10**6)]
"""-1: the start."""


def make_app(folder: Path, policy: AccessPolicy | None = None, extension: Extension | None = None) -> FastAPI:
    """Return the web application over a folder of runs, or over a single run. An extension needs a token."""
    if extension is not None and (policy is None or policy.token is None):
        raise ValueError("an extension may write, so the policy needs a token")
    app = bare_app()
    root = ViewedFolder(folder)
    store = RunStore(root)
    add_run_routes(app, root, store)
    add_trajectory_routes(app, store)
    add_comparison_route(app, store)
    add_image_route(app, root)
    add_extension(app, extension)
    add_page_routes(app)
    app.add_middleware(AccessMiddleware, policy=policy or AccessPolicy())
    return app


def bare_app() -> FastAPI:
    """Return an application without routes, whose errors are one line of JSON."""
    app = FastAPI(title="turnwise", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(UserError, respond_to_user_error)
    app.add_exception_handler(OSError, respond_to_disk_error)
    app.add_exception_handler(HTTPException, respond_to_http_error)
    app.add_exception_handler(RequestValidationError, respond_to_wrong_query)
    return app


def add_page_routes(app: FastAPI) -> None:
    @app.get("/")
    def page() -> Response:
        return FileResponse(STATIC / "index.html")

    @app.get("/static/metric_catalogue.js")
    def metric_catalogue() -> Response:
        return Response(write_catalogue(), media_type="text/javascript")

    app.mount("/static", StaticFiles(directory=STATIC, check_dir=False))


def write_catalogue() -> str:
    """Return the metrics' names, titles, units and ranges as a module of the page."""
    metrics = [
        {
            "name": metric.name,
            "pattern": metric.pattern,
            "unit": metric.unit,
            "title": metric.label[:1].upper() + metric.label[1:] if "viewer" in metric.places else "",
            "evaluations": metric.evaluations or (),
            "range": [0, 1] if metric.from_0_to_1 else None,
        }
        for metric in METRICS
    ]
    return f"export const METRICS = {json.dumps(metrics)};\n"


def add_run_routes(app: FastAPI, root: ViewedFolder, store: RunStore) -> None:
    """Add the routes for the list of runs, settings, metrics and alarms."""
    runs, explanations = RunList(root), Explanations(root)

    @app.get("/api/runs")
    def list_runs(request: Request) -> Response:
        return json_response(request, encode_json({"root": root.name, "runs": runs.rows()}))

    @app.get("/api/config")
    def config(request: Request, run: Text) -> Response:
        return json_response(request, encode_json(settings_and_defaults(root, root.find_run(run))))

    @app.get("/api/run")
    def run_page(request: Request, run: Text) -> Response:
        """Return what the page of a run shows: its row, its summary, its parent, its checkpoints and its alarms."""
        folder = root.find_run(run)
        page = {"row": runs.row(run), "summary": read_summary(root, folder), **describe_run(root, folder)}
        return json_response(request, encode_json(page))

    @app.get("/api/keys")
    def keys(request: Request, run: Text) -> Response:
        return json_response(request, encode_json({"keys": store.open(run).metric_names()}))

    @app.get("/api/metrics")
    def metrics(
        request: Request, run: Text, after: Count = 0, keys: Text | None = None, generation: Text | None = None
    ) -> Response:
        names = None if keys is None else keys.split(",")
        columns = store.open(run).metrics(after, names, generation)
        return json_response(request, encode_json(columns, nonfinite="null"))

    @app.get("/api/spans")
    def spans(request: Request, run: Text, last: Count | None = None, count: SpanSteps = 4) -> Response:
        """Return who did what in some steps of an asynchronous or cluster run."""
        return json_response(request, encode_json(store.open(run).spans(last, count)))

    @app.get("/api/explain")
    def explanation(request: Request, run: Text) -> Response:
        """Return what the run did in sentences, by title."""
        return json_response(request, encode_json({"sections": explanations.explain(root.find_run(run))}))

    @app.get("/api/alarms")
    def alarms(request: Request, run: Text) -> Response:
        return json_response(request, encode_json(read_alarms(root, root.find_run(run))))


def add_image_route(app: FastAPI, root: ViewedFolder) -> None:
    @app.get("/api/image")
    def image(run: Text, hash: Text) -> Response:
        """Return an image that a trajectory refers to."""
        name = image_file_name(hash)
        if name is None:
            raise FileNotServed("An image is requested by its hash: reload the page.")
        data = root.read(root.find_run(run), IMAGES_FOLDER, name, limit=MAX_IMAGE_BYTES)
        if not data.startswith(PNG_SIGNATURE):
            raise FileNotServed(f"{name} is not a PNG file: restore it from a copy of the run.")
        return Response(data, media_type="image/png")


def add_trajectory_routes(app: FastAPI, store: RunStore) -> None:
    """Add the routes for lists of trajectories and single trajectories."""

    @app.get("/api/trajectories")
    def trajectories(request: Request, query: Annotated[TrajectoryQuery, Query()]) -> Response:
        return json_response(request, encode_json(list_trajectories(store.open(query.run), query)))

    @app.get("/api/trajectory")
    def trajectory(request: Request, run: Text, number: Count) -> Response:
        return json_response(request, store.trajectory(run, number))

    @app.get("/api/html")
    def state_html(run: Text, number: Count, turn: TurnIndex) -> Response:
        """Return the state after a turn as the environment rendered it."""
        return respond_with_html(store.row(run, number), turn)


def add_comparison_route(app: FastAPI, store: RunStore) -> None:
    """Add the route for tasks that two runs share."""

    @app.get("/api/common")
    def common_tasks(
        request: Request,
        one: Text,
        other: Text,
        one_evaluation: Text | None = None,
        other_evaluation: Text | None = None,
        offset: Count = 0,
        limit: TaskCount = 5000,
    ) -> Response:
        tables = store.open(one).table(), store.open(other).table()
        evaluations = one_evaluation or None, other_evaluation or None
        tasks = match_tasks(*tables, evaluations=evaluations, offset=offset, limit=limit)
        names = {side: table.sorted_names("evaluation") for side, table in zip(("one", "other"), tables, strict=True)}
        return json_response(request, encode_json({**tasks, "evaluations": names}))


def respond_to_user_error(request: Request, error: Exception) -> Response:
    return error_response(404 if isinstance(error, FileNotServed) else 400, str(error))


def respond_to_disk_error(request: Request, error: Exception) -> Response:
    """Report a file that could be opened but not read, e.g. on a network drive that was disconnected."""
    reason = error.strerror if isinstance(error, OSError) else None
    return error_response(404, f"Cannot read the run's files ({reason or type(error).__name__}): reload the page")


def respond_to_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return error_response(status, f"{request.url.path}: {error.detail if isinstance(error, HTTPException) else error}")


def respond_to_wrong_query(request: Request, error: Exception) -> Response:
    first: dict[str, Any] = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    parameter = ".".join(str(part) for part in first.get("loc", ())[1:])
    return error_response(400, f"Wrong value for {parameter}: {first.get('msg', error)}")
