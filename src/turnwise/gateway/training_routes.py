"""Server side of remote training: a trainer elsewhere runs agents, and the model is trained here."""

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnwise.core.errors import DivergedError, EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Group, Trajectory
from turnwise.envs.agent.tasks import task_of_value
from turnwise.evaluation.episodes import Evaluation
from turnwise.gateway import training_protocol as protocol
from turnwise.gateway.admin import guard
from turnwise.gateway.agent_episodes import AgentRun, OpenEpisode
from turnwise.gateway.agents import AgentCrash, AgentExit
from turnwise.gateway.chat import GatewayError, RequestError
from turnwise.gateway.request_body import BodyReader, parse_json
from turnwise.rollout.collect import CollectedGroups

GRACE_S = 60.0
"""Seconds beyond rollout.timeout_s after which an open episode is dropped, as its trainer is gone."""

log = logging.getLogger("turnwise")

AnyRequest = TypeVar("AnyRequest", bound=BaseModel)


class TrainingService(AgentRun, Protocol):
    """A run that is trained on the episodes of a trainer elsewhere."""

    def record_evaluation(self, name: str, evaluation: Evaluation) -> None: ...


@dataclass(slots=True)
class TrainingSession:
    """Episodes of the trainer that connected last."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    open: dict[str, OpenEpisode] = field(default_factory=dict)
    replies: dict[str, protocol.FinishReply] = field(default_factory=dict)
    """Replies for episodes that ended, for repeated requests."""
    finished: dict[str, Trajectory] = field(default_factory=dict)

    async def drop(self, *names: str) -> None:
        """Close episodes that are still open. They are not trained on."""
        for name in names:
            if (episode := self.open.pop(name, None)) is not None:
                await episode.close()

    def find(self, names: Sequence[str]) -> tuple[Trajectory, ...]:
        """Return finished episodes. Raises RequestError."""
        if not names:
            raise RequestError("episodes", "name at least one episode")
        for name in names:
            if name not in self.finished:
                raise RequestError("episodes", f"{name} is not an episode that finished since the last step")
        return tuple(self.finished[name] for name in names)


class TrainingRoutes:
    """The routes, and the session of the trainer that connected last."""

    def __init__(self, service: TrainingService, token: str) -> None:
        self._service, self._token = service, token
        self._session = TrainingSession()
        self._bodies, self._stepping = BodyReader(), asyncio.Lock()
        self._last_step: tuple[int, protocol.StepReply] | None = None
        """Number and metrics of the last step of this process."""
        self._expiring: set[asyncio.Task[None]] = set()
        self._lost = set[str]()
        """Episodes since the last step that their trainer did not end: failures of the infrastructure."""
        self.diverged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the DivergedError of a step after which the run cannot go on."""

    def routes(self) -> list[Route]:
        return [
            self._route("", protocol.Connect, self._connect),
            self._route("/episodes", protocol.OpenRequest, self._open_episode),
            self._route("/episodes/finish", protocol.FinishRequest, self._finish_episode),
            self._route("/episodes/close", protocol.CloseRequest, self._close_episode),
            self._route("/step", protocol.StepRequest, self._step),
            self._route("/evaluation", protocol.EvaluationRequest, self._record_evaluation),
            self._route("/save", protocol.SaveRequest, self._save),
        ]

    def _route(self, path: str, kind: type[AnyRequest], handle: Callable[[AnyRequest], Awaitable[BaseModel]]) -> Route:
        async def answer(request: Request) -> Response:
            async with self._bodies.read(request) as given:
                body = _read_request(kind, parse_json(given))
            if getattr(body, "session", self._session.id) != self._session.id:
                raise GatewayError(409, "conflict", self._describe_lost_session())
            try:
                reply = await handle(body)
            except UserError as error:
                raise GatewayError(400, "invalid_request", str(error)) from error
            return Response(json.dumps(reply.model_dump()), media_type="application/json")  # metrics may be NaN

        return Route(f"{protocol.PREFIX}{path}", guard(answer, self._token), methods=["POST"])

    def _describe_lost_session(self) -> str:
        return (
            "The server was restarted, or another trainer has connected: open tw.Trainer(url=...) again, which "
            f"continues after step {self._service.steps_done}."
        )

    async def _connect(self, request: protocol.Connect) -> protocol.Connection:
        async with self._stepping:  # a step of the trainer before is part of the run that this one continues
            self._lost.update(self._session.open)
            await self._session.drop(*self._session.open)
            self._session, self._last_step, service = TrainingSession(), None, self._service
        return protocol.Connection(
            session=self._session.id,
            config=service.config.model_dump(mode="json"),
            path=str(service.path),
            steps_done=service.steps_done,
            api_key=service.access.key,
        )

    async def _open_episode(self, request: protocol.OpenRequest) -> protocol.OpenReply:
        session, service = self._session, self._service
        collector = service.collector(evaluation=request.evaluation)
        key = EpisodeKey(
            run_seed=collector.run_seed,
            round=0 if request.evaluation else service.steps_done,
            task=task_of_value(request.task, "test" if request.evaluation else "train"),
            member=request.member,
            attempt=request.attempt,
        )
        name = f"{key.address:016x}"
        await session.drop(name)
        session.replies.pop(name, None)
        episode = session.open[name] = await collector.host.open(key)
        asyncio.get_running_loop().call_later(self._limit_s, self._expire, session, name, episode)
        return protocol.OpenReply(id=name, api_key=episode.access.key)

    @property
    def _limit_s(self) -> float:
        return self._service.config.rollout.timeout_s + GRACE_S

    def _expire(self, session: TrainingSession, name: str, episode: OpenEpisode) -> None:
        """Drop an episode whose trainer is gone."""

        async def drop() -> None:
            self._lost.add(name)
            await session.drop(name)
            log.warning("The trainer did not end an episode within %g s: it was dropped.", self._limit_s)

        if session.open.get(name) is episode:
            task = asyncio.ensure_future(drop())
            self._expiring.add(task)
            task.add_done_callback(self._expiring.discard)

    async def _close_episode(self, request: protocol.CloseRequest) -> protocol.Done:
        await self._session.drop(request.id)
        return protocol.Done()

    async def _finish_episode(self, request: protocol.FinishRequest) -> protocol.FinishReply:
        session, name = self._session, request.id
        if name in session.replies:
            return session.replies[name]
        episode = session.open.pop(name, None)
        if episode is None:
            self._lost.discard(name)  # its trainer counts it
            late = InfrastructureFailure(f"the episode was open for more than {self._limit_s:g} s, or never opened")
            return protocol.FinishReply(failure=protocol.FailureBody.of(late))
        agent, folder = self._service.collector(evaluation=False).agent, self._service.path
        try:
            trajectory = await episode.finish(_read_exit(request), agent, None, folder)
        except (EnvironmentFailure, InfrastructureFailure) as failure:
            session.replies[name] = protocol.FinishReply(failure=protocol.FailureBody.of(failure))
        else:
            session.finished[name] = trajectory
            session.replies[name] = protocol.FinishReply(trajectory=protocol.TrajectoryBody.of(trajectory))
        return session.replies[name]

    async def _step(self, request: protocol.StepRequest) -> protocol.StepReply:
        async with self._stepping:
            if self._last_step is not None and self._last_step[0] == request.step:
                return self._last_step[1]
            if request.step != self._service.steps_done + 1:
                raise RequestError("step", f"the server has finished {self._service.steps_done} steps")
            reply = protocol.StepReply(metrics=await self._train(request))
            self._last_step = (request.step, reply)
            self._session.finished.clear()
            self._session.replies.clear()
            self._lost.clear()
            return reply

    async def _train(self, request: protocol.StepRequest) -> dict[str, Any]:
        members = [self._session.find(names) for names in request.groups]
        groups = tuple(Group(task=member[0].task, trajectories=member) for member in members)
        last = EnvironmentFailure(request.last_failure) if request.last_failure else None
        counts = Counter(request.counts) + Counter(infra_errors=len(self._lost))
        collected = CollectedGroups(groups=groups, counts=counts, last_failure=last)
        try:
            return await self._service.step(collected)
        except DivergedError as error:
            self.diverged.set_exception(error)
            raise

    async def _record_evaluation(self, request: protocol.EvaluationRequest) -> protocol.Done:
        trajectories = self._session.find(request.episodes)
        self._service.record_evaluation(request.name, Evaluation(trajectories=trajectories, dropped=request.dropped))
        return protocol.Done()

    async def _save(self, request: protocol.SaveRequest) -> protocol.SaveReply:
        return protocol.SaveReply(path=str(self._service.save()))


def _read_request(kind: type[AnyRequest], body: dict[str, Any]) -> AnyRequest:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(".".join(map(str, first["loc"])), first["msg"]) from error


def _read_exit(request: protocol.FinishRequest) -> AgentExit:
    return AgentExit(
        value=None if request.outcome is None else request.outcome.outcome(),
        crash=None if request.crash is None else AgentCrash(request.crash),
        timed_out=request.timed_out,
    )
