"""Routes of the studio: the form of a new run, the queue of jobs, labels of episodes, and loaded checkpoints."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi import Path as InPath
from pydantic import BaseModel, ConfigDict
from starlette.types import ASGIApp

from turnwise.core.errors import UserError
from turnwise.studio.access import WriteGuard
from turnwise.studio.agent_requests import AgentCommand, AgentRequest
from turnwise.studio.agents import Agents
from turnwise.studio.form import check_request, describe_form, plan_request
from turnwise.studio.jobs import Job
from turnwise.studio.labels import LabelRequest, Labels, short_path
from turnwise.studio.new_run import RequestedRuns
from turnwise.studio.queue import Queue
from turnwise.studio.requests import RunRequest, ShortText
from turnwise.viewer.api import TurnIndex, bare_app
from turnwise.viewer.json_io import encode_json, json_response
from turnwise.viewer.state_html import respond_with_html
from turnwise.viewer.viewed_folder import ViewedFolder

JobNumber = Annotated[int, InPath(ge=1, le=10**9)]
AgentId = Annotated[str, InPath(max_length=100)]
EpisodeNumber = Annotated[int, Query(ge=0, le=2**53)]


class StopRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    now: bool = False
    """Kill the job without letting it save."""


class NoRequest(BaseModel):
    """The empty object."""

    model_config = ConfigDict(extra="forbid")


def make_routes(folder: Path, queue: Queue, agents: Agents) -> ASGIApp:
    """Return the application with all routes of the studio over a folder of runs."""
    app, root = bare_app(), ViewedFolder(folder)
    runs = RequestedRuns(root, folder, queue)
    add_form_routes(app, runs)
    add_job_routes(app, runs, queue)
    add_label_routes(app, Labels(root))
    add_agent_routes(app, root, agents)
    return WriteGuard(app)


def add_form_routes(app: FastAPI, runs: RequestedRuns) -> None:
    @app.get("/form")
    def form(request: Request) -> Response:
        return json_response(request, encode_json(describe_form()))

    @app.post("/check")
    def check(request: Request, wanted: RunRequest) -> Response:
        """Check the settings of a run; return all of its values, or the error in one line."""
        return json_response(request, encode_json(check_request(runs.complete(wanted))))

    @app.post("/plan")
    def plan(request: Request, wanted: RunRequest) -> Response:
        """Plan a run: its episodes, time and memory, as `turnwise train --dry-run` does."""
        if wanted.command == "sft":
            raise UserError("Fine-tuning has no plan. Start it.")
        return json_response(request, encode_json(plan_request(runs.complete(wanted))))


def add_label_routes(app: FastAPI, labels: Labels) -> None:
    @app.get("/labels")
    def describe(request: Request, run: ShortText) -> Response:
        return json_response(request, encode_json(labels.describe(run)))

    @app.get("/label")
    def read(request: Request, run: ShortText, number: EpisodeNumber) -> Response:
        return json_response(request, encode_json({"label": labels.get(run, number)}))

    @app.post("/label")
    def write(request: Request, wanted: LabelRequest) -> Response:
        labels.set(wanted)
        return json_response(request, encode_json({"label": wanted.label}))


def add_agent_routes(app: FastAPI, root: ViewedFolder, agents: Agents) -> None:
    @app.get("/agents")
    def loaded(request: Request) -> Response:
        return json_response(request, encode_json({"agents": [agent.summary() for agent in agents.list()]}))

    @app.post("/agents")
    def load(request: Request, wanted: AgentRequest) -> Response:
        """Start to load a checkpoint to play and chat with it."""
        path = short_path(root.find_run(wanted.run))
        agent = agents.load(wanted.model_copy(update={"run": str(path)}), wanted.run)
        return json_response(request, encode_json(agent.summary()))

    @app.get("/agents/{agent}")
    def describe(request: Request, agent: AgentId, after: Annotated[int, Query(ge=-1, le=2**53)] = -1) -> Response:
        """Return the state of a loaded checkpoint, and what its page shows if that is newer than `after`."""
        return json_response(request, encode_json(agents.find(agent).describe(after)))

    @app.get("/agents/{agent}/html")
    def state_html(agent: AgentId, turn: TurnIndex) -> Response:
        """Return the state after a turn of the episode as the environment rendered it."""
        return respond_with_html(agents.find(agent).episode_row(), turn)

    @app.post("/agents/{agent}/command")
    def command(request: Request, agent: AgentId, wanted: AgentCommand) -> Response:
        agents.find(agent).command(wanted)
        return json_response(request, encode_json({}))

    @app.post("/agents/{agent}/close")
    def close(request: Request, agent: AgentId, wanted: NoRequest) -> Response:
        agents.close(agent)
        return json_response(request, encode_json({}))


def add_job_routes(app: FastAPI, runs: RequestedRuns, queue: Queue) -> None:
    def describe(job: Job) -> Mapping[str, Any]:
        return {**asdict(job), "run": runs.id_of(job.run)}

    @app.get("/jobs")
    def jobs(request: Request) -> Response:
        listed = [describe(job) for job in queue.jobs()]
        return json_response(request, encode_json({"jobs": listed, "problem": queue.problem}))

    @app.post("/jobs")
    def add(request: Request, wanted: RunRequest) -> Response:
        """Check a run as the command line does, and add it to the queue."""
        return json_response(request, encode_json(describe(runs.start(wanted))))

    @app.post("/jobs/{number}/stop")
    def stop(request: Request, number: JobNumber, wanted: StopRequest) -> Response:
        return json_response(request, encode_json(describe(queue.stop(number, now=wanted.now))))

    @app.post("/jobs/{number}/remove")
    def remove(request: Request, number: JobNumber, wanted: NoRequest) -> Response:
        queue.remove(number)
        return json_response(request, encode_json({}))

    @app.get("/jobs/{number}/log")
    def read_log(request: Request, number: JobNumber, after: Annotated[int, Query(ge=-1, le=2**53)] = -1) -> Response:
        text, end = queue.read_log(number, after)
        return json_response(request, encode_json({"text": text, "next": end}))
