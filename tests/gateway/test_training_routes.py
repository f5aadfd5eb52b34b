"""Routes of `turnwise serve --train` with trainers that vanish, over a service that trains nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openai
import pytest

from episodes_for_tests import limits, renderer, says
from turnwise.config.schema import Config
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.task import EpisodeKey
from turnwise.envs.agent.tasks import task_of_value, value_of_task
from turnwise.evaluation.episodes import Evaluation
from turnwise.gateway import training_routes
from turnwise.gateway.agent_episodes import AgentCollector, RecordedEpisodes
from turnwise.gateway.agents import Access, AgentExit, FunctionAgent, make_client
from turnwise.gateway.server import Gateway
from turnwise.gateway.training_protocol import Connect, Connection
from turnwise.gateway.training_routes import TrainingRoutes
from turnwise.rollout.collect import CollectedGroups
from turnwise.run.agents import build_collector
from turnwise.run.remote_trainer import RemoteBackend, TrainingServer

TOKEN = "token"
TASK = task_of_value("one", "train")


@dataclass
class Service:
    """Keeps what it is given to train on. `proceed`: steps wait for it."""

    gateway: Gateway
    config: Config = field(default_factory=Config)
    path: Path = Path("runs/x")
    access: Access = field(default_factory=lambda: Access(url="", key=""))
    trained: list[CollectedGroups] = field(default_factory=list)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def steps_done(self) -> int:
        return len(self.trained)

    def collector(self, *, evaluation: bool) -> AgentCollector:
        host = RecordedEpisodes(gateway=self.gateway, limits=limits(), settings=self.config.agent)
        return build_collector(self.config.agent, self.config.rollout, host, value_of_task, 0)

    async def step(self, collected: CollectedGroups) -> dict[str, Any]:
        await self.proceed.wait()
        self.trained.append(collected)
        return {"step": self.steps_done}

    def save(self) -> Path:
        return self.path

    def record_evaluation(self, name: str, evaluation: Evaluation) -> None:
        raise AssertionError("not used here")


@asynccontextmanager
async def serving() -> AsyncIterator[Service]:
    gateway = Gateway(says("hello"), renderer(), limits(), None, max_sessions=8)
    service = Service(gateway)
    gateway.listen_at("127.0.0.1", 0, TrainingRoutes(service, TOKEN).routes())
    async with gateway:
        yield service


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[RemoteBackend]:
    server = TrainingServer(service.gateway.url, TOKEN)
    try:
        yield RemoteBackend(server, await server.post("", Connect(), Connection), service.config)
    finally:
        await server.close()


async def ask(client: Any, task: Any) -> float:
    await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])
    return 1.0


async def gather(backend: RemoteBackend) -> CollectedGroups:
    collector = replace(backend.collector(evaluation=False), agent=FunctionAgent(ask))
    return await collector.collect([TASK], group_size=2, round=backend.steps_done)


def test_episodes_of_a_vanished_trainer_are_infrastructure_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its episodes never ends; another ends too late, as after a laptop's sleep."""

    async def vanish(service: Service) -> None:
        limit_s = 0.2
        monkeypatch.setattr(training_routes, "GRACE_S", limit_s - service.config.rollout.timeout_s)
        async with connected(service) as backend:
            host = backend.collector(evaluation=False).host
            keys = [EpisodeKey(run_seed=0, round=0, task=TASK, member=member) for member in (5, 6)]
            episodes = [await host.open(key) for key in keys]
            for episode in episodes:
                async with make_client(episode.access) as client:
                    with suppress(openai.ConflictError):  # it may be over already
                        await ask(client, "one")
            while service.gateway.episodes():
                await asyncio.sleep(0.01)
            with pytest.raises(InfrastructureFailure, match=r"was open for more than 0\.2 s"):
                await episodes[0].finish(AgentExit(value=1.0), FunctionAgent(ask), "one", Path())

    async def run() -> list[CollectedGroups]:
        async with serving() as service:
            service.proceed.set()
            await vanish(service)
            monkeypatch.setattr(training_routes, "GRACE_S", 60.0)
            async with connected(service) as backend:
                for _ in range(2):
                    await backend.step(await gather(backend))
            return service.trained

    first, second = asyncio.run(run())
    for collected in (first, second):
        assert [[each.total_reward for each in group.trajectories] for group in collected.groups] == [[1.0, 1.0]]
    assert first.counts == {"infra_errors": 1} and not second.counts


def test_trainer_that_connects_in_a_step_continues_after_it() -> None:
    """The trainer before is lost in its step; its step is not taken for one of the new trainer."""

    async def run() -> list[CollectedGroups]:
        async with serving() as service, connected(service) as lost, AsyncExitStack() as exits:
            running = asyncio.create_task(lost.step(await gather(lost)))
            connecting = asyncio.create_task(exits.enter_async_context(connected(service)))
            await asyncio.wait({connecting}, timeout=0.3)
            service.proceed.set()
            backend = await connecting
            assert (await running)["step"] == backend.steps_done == 1
            assert (await backend.step(await gather(backend)))["step"] == 2
            return service.trained

    first, second = asyncio.run(run())
    assert first.groups[0].trajectories != second.groups[0].trajectories
