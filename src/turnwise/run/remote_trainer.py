"""Client side of remote training: agents run here, and `turnwise serve --train` records and trains."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from turnwise.config.schema import Config
from turnwise.core.errors import Outage, UserError
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.envs.agent.tasks import value_of_task
from turnwise.evaluation.episodes import Evaluation, evaluate
from turnwise.gateway import training_protocol as protocol
from turnwise.gateway.agent_episodes import AgentCollector, read_outcome
from turnwise.gateway.agents import Access, Agent, AgentExit
from turnwise.rollout.collect import CollectedGroups
from turnwise.run.agents import build_collector

RETRY_AFTER_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses before a request is repeated after a broken connection."""
TIMEOUT = httpx2.Timeout(None, connect=20.0)
"""A step may take long; a server that is there accepts connections at once."""

Reply = TypeVar("Reply", bound=BaseModel)


class TrainingServer:
    """HTTP client of the server's routes."""

    def __init__(self, url: str, api_key: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        secure = self.url.startswith("https:")
        self._options: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {api_key}"},
            "timeout": TIMEOUT,
            "verify": secure,
            "trust_env": secure,
        }
        self._client = httpx2.AsyncClient(**self._options, limits=httpx2.Limits(max_connections=None))

    async def close(self) -> None:
        await self._client.aclose()

    async def post(self, path: str, request: BaseModel, kind: type[Reply]) -> Reply:
        """Send a request and return the reply. Raises UserError."""
        body = request.model_dump(mode="json")
        for pause in (*RETRY_AFTER_S, None):
            try:
                return self._read(await self._client.post(f"{self.url}{protocol.PREFIX}{path}", json=body), kind)
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                if pause is None or isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
                    raise self._unreachable(error) from error
                await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def post_and_wait(self, path: str, request: BaseModel, kind: type[Reply]) -> Reply:
        """Send a request from code that is not async."""
        try:
            with httpx2.Client(**self._options) as client:
                return self._read(
                    client.post(f"{self.url}{protocol.PREFIX}{path}", json=request.model_dump(mode="json")), kind
                )
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> Outage:
        return Outage(
            f"{self.url} cannot be reached ({type(error).__name__}): start `turnwise serve --train` there, with "
            "--resume RUN if it was stopped, and open tw.Trainer(url=...) again."
        )

    def _read(self, response: httpx2.Response, kind: type[Reply]) -> Reply:
        if response.status_code == 401:
            raise UserError(f"{self.url} refuses the api_key: use the token that `turnwise serve --train` printed.")
        try:
            body = response.json()
            if response.is_success:
                return kind.model_validate(body)
            message = str(body["error"]["message"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.url} is not a training server of this version of turnwise (HTTP {response.status_code}): start "
                "`turnwise serve --train` there."
            ) from error
        if response.status_code == 404:
            message = "it does not train: start it with `turnwise serve --train`"
        raise UserError(f"{self.url}: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEpisodes:
    """Episodes that the server records."""

    server: TrainingServer
    session: str
    evaluation: bool
    success_at: float
    finished: dict[str, Trajectory]
    """Trajectories by episode, since the last step."""

    async def open(self, key: EpisodeKey) -> "RemoteEpisode":
        request = protocol.OpenRequest(
            session=self.session,
            task=value_of_task(key.task),
            member=key.member,
            attempt=key.attempt,
            evaluation=self.evaluation,
        )
        opened = await self.server.post("/episodes", request, protocol.OpenReply)
        return RemoteEpisode(host=self, key=key, id=opened.id, access=Access(url=self.server.url, key=opened.api_key))


@dataclass(slots=True, kw_only=True)
class RemoteEpisode:
    """An open episode of the server."""

    host: RemoteEpisodes
    key: EpisodeKey
    id: str
    access: Access
    closed: bool = field(default=False)

    async def finish(self, ended: AgentExit, agent: Agent, task: Any, folder: Path) -> Trajectory:
        host, key = self.host, self.key
        outcome = None if ended.value is None else read_outcome(ended.value, host.success_at, "the agent")
        request = protocol.FinishRequest(
            session=host.session,
            id=self.id,
            outcome=None if outcome is None else protocol.OutcomeBody.of(outcome),
            crash=None if ended.crash is None else str(ended.crash),
            timed_out=ended.timed_out,
        )
        reply = await host.server.post("/episodes/finish", request, protocol.FinishReply)
        self.closed = True
        if reply.failure is not None:
            raise reply.failure.failure()
        assert reply.trajectory is not None
        trajectory = host.finished[self.id] = reply.trajectory.trajectory(key.task, key.member, key.attempt)
        return trajectory

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            request = protocol.CloseRequest(session=self.host.session, id=self.id)
            await self.host.server.post("/episodes/close", request, protocol.Done)


class RemoteBackend:
    """A run on a server."""

    def __init__(self, server: TrainingServer, connection: protocol.Connection, config: Config) -> None:
        self.config, self.path, self.steps_done = config, Path(connection.path), connection.steps_done
        self.access = Access(url=server.url, key=connection.api_key)
        self._server, self._session = server, connection.session
        self._finished: dict[str, Trajectory] = {}

    def collector(self, *, evaluation: bool) -> AgentCollector:
        config = self.config
        host = RemoteEpisodes(
            server=self._server,
            session=self._session,
            evaluation=evaluation,
            success_at=config.agent.success_at,
            finished=self._finished,
        )
        return build_collector(config.agent, config.rollout, host, value_of_task, config.seed)

    def show(self, done: int, total: int) -> None:
        """The server shows the steps."""

    async def step(self, collected: CollectedGroups) -> dict[str, Any]:
        request = protocol.StepRequest(
            session=self._session,
            step=self.steps_done + 1,
            groups=[self._name(group.trajectories) for group in collected.groups],
            counts=dict(collected.counts),
            last_failure=None if collected.last_failure is None else str(collected.last_failure),
        )
        reply = await self._server.post("/step", request, protocol.StepReply)
        self.steps_done += 1
        self._finished.clear()
        return reply.metrics

    def _name(self, trajectories: Sequence[Trajectory]) -> list[str]:
        """Return the episodes of trajectories. The server has their tokens and rewards: changed ones cannot be used."""
        names = {id(each): name for name, each in self._finished.items()}
        if any(id(trajectory) not in names for trajectory in trajectories):
            raise UserError("Pass groups of trainer.gather since the last step unchanged: the server has their tokens.")
        return [names[id(trajectory)] for trajectory in trajectories]

    async def evaluate(self, collector: AgentCollector, name: str, tasks: Sequence[Task]) -> Evaluation:
        evaluation = await evaluate(collector, tasks)
        request = protocol.EvaluationRequest(
            session=self._session,
            name=name,
            episodes=self._name(evaluation.trajectories),
            dropped=evaluation.dropped,
        )
        await self._server.post("/evaluation", request, protocol.Done)
        return evaluation

    def save(self) -> Path:
        reply = self._server.post_and_wait("/save", protocol.SaveRequest(session=self._session), protocol.SaveReply)
        return Path(reply.path)


@asynccontextmanager
async def open_remote(url: str, api_key: str) -> AsyncIterator[RemoteBackend]:
    """protocol.Connect to the server. Leaving it saves a checkpoint there."""
    server = TrainingServer(url, api_key)
    try:
        connection = await server.post("", protocol.Connect(), protocol.Connection)
        try:
            config = Config.model_validate(connection.config)
        except ValidationError as error:
            raise UserError(f"{server.url} has another version of turnwise: install the same version here.") from error
        backend = RemoteBackend(server, connection, config)
        try:
            yield backend
        except BaseException:
            with suppress(UserError):  # the first error is the one to report
                backend.save()
            raise
        backend.save()
    finally:
        await server.close()
