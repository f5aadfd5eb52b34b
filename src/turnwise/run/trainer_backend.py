"""Backends of `tw.Trainer`: a run in this process (`LocalBackend`), or one on a server (`RemoteBackend`)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from turnwise.algos.estimators import OnPolicySettings
from turnwise.config.load import Overrides
from turnwise.config.schema import Config
from turnwise.core.errors import DivergedError, UserError
from turnwise.core.task import EpisodeKey, Task
from turnwise.envs.agent.settings import AGENT_ENV, StartedAgent
from turnwise.envs.agent.tasks import value_of_task
from turnwise.envs.seeds import seed_for
from turnwise.evaluation.episodes import Evaluation
from turnwise.gateway.agent_episodes import AgentCollector, AgentRun, RecordedEpisodes
from turnwise.gateway.agents import Access
from turnwise.rollout.collect import CollectedGroups
from turnwise.rollout.settings import AutoSource
from turnwise.run.configure import configure
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.find_model import find_checkpoint
from turnwise.run.run_name import check_run_name
from turnwise.run.train import ReinforcementRun
from turnwise.run.training_run import resolve
from turnwise.run.validate import check_settings
from turnwise.training.sources.played import Played
from turnwise.training.step_record import StepTimer

if TYPE_CHECKING:  # its packages are optional
    from turnwise.gateway.server import Gateway


class _CallersRun(ReinforcementRun):
    """A run whose steps `tw.Trainer` takes."""

    def advise_finished(self, path: Path) -> str:
        return f'To train its model further: tw.Trainer(model="{path}")'


class TrainerBackend(AgentRun, Protocol):
    """An open run: `Trainer` runs the agents, and the backend records their episodes and trains on them."""

    def show(self, done: int, total: int) -> None:
        """Show the progress of the rollout."""
        ...

    async def evaluate(self, collector: AgentCollector, name: str, tasks: Sequence[Task]) -> Evaluation:
        """Run an episode per task and record them."""
        ...


class LocalBackend:
    """A run in this process."""

    def __init__(
        self, run: ReinforcementRun, source: Played, access: Access, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """`source` scores and filters episodes; `rows`: the metrics of each step, appended by the run."""
        self.config, self.access = run.config, access
        self._run, self._source, self._rows = run, source, rows
        self._timers: dict[bool, StepTimer] = {}
        """Timer of the episodes since the last step (False) or evaluation (True)."""

    @property
    def path(self) -> Path:
        return self._run.folder.path

    @property
    def steps_done(self) -> int:
        return self._run.loop.step

    def collector(self, *, evaluation: bool) -> AgentCollector:
        stack = self._run.parts.stack
        collector = stack.evaluator if evaluation else stack.collector
        assert isinstance(collector, AgentCollector)
        self._timers.setdefault(evaluation, StepTimer())
        return replace(collector, find_task=value_of_task)

    def show(self, done: int, total: int) -> None:
        self._run.parts.run.progress.phase("rollout", done, total)

    async def step(self, collected: CollectedGroups) -> dict[str, Any]:
        loop, gateway = self._run.loop, self._run.parts.stack.gateway
        assert gateway is not None
        members = sum(len(group.trajectories) for group in collected.groups)
        rollout = await self._source.use(loop.step, collected, episodes=members + collected.counts["dropped"])
        await gateway.pause()
        try:
            timer = self._timers.pop(False, None) or StepTimer()
            await loop.train_on(rollout, timer)
            await loop.finish_step()
        finally:
            gateway.resume()
        return dict(self._rows[-1])

    async def evaluate(self, collector: AgentCollector, name: str, tasks: Sequence[Task]) -> Evaluation:
        self._timers.pop(True, None)
        return await replace(self._run.parts.evaluator, collector=collector).evaluate(name, tasks, self.steps_done)

    def record_evaluation(self, name: str, evaluation: Evaluation) -> None:
        """Record episodes that a remote trainer ran."""
        tasks, timer = (
            [trajectory.task for trajectory in evaluation.trajectories],
            self._timers.pop(True, None) or StepTimer(),
        )
        self._run.parts.evaluator.record(name, tasks, evaluation, self.steps_done, timer)

    def save(self) -> Path:
        self._run.loop.stop()
        return find_checkpoint(self.path, None)


@asynccontextmanager
async def open_local(
    config: Config,
    override_keys: Sequence[str],
    console: Console,
    *,
    resume: bool,
    prepare: Callable[["Gateway", LocalBackend], None] | None = None,
) -> AsyncIterator[LocalBackend]:
    """Open a run. Leaving it saves a checkpoint, unless the weights are no longer finite.

    `prepare`: called before the gateway listens.
    """
    environments = build_environment_mix(config.env, config.agent)
    await asyncio.to_thread(check_settings, config, override_keys)
    config, rows = resolve(config), list[Mapping[str, Any]]()
    async with AsyncExitStack() as exits:
        run = _CallersRun(config, environments, console, rows.append)
        if not resume:
            check_run_name(config.record)
        exits.enter_context(run.open_folder(resume))
        run.planned_steps = config.train.steps if "train.steps" in override_keys else None
        _, state = exits.enter_context(run.open(resume))
        gateway, source = run.parts.stack.gateway, run.loop.source
        assert isinstance(source, Played) and gateway is not None
        exits.push_async_callback(run.services.close)
        backend = LocalBackend(run, source, Access(url="", key=""), rows)
        if prepare is not None:
            prepare(gateway, backend)
        await exits.enter_async_context(gateway)
        await run.loop.begin(state)
        backend.access = await open_access(run)
        try:
            yield backend
        except DivergedError:
            raise
        except BaseException:
            if backend.steps_done:  # else the run is removed, and its name is free again
                backend.save()
            raise
        backend.save()


async def open_access(run: ReinforcementRun) -> Access:
    """Open an episode that is not trained on. It is closed with the gateway."""
    collector = run.parts.stack.evaluator
    assert isinstance(collector, AgentCollector) and isinstance(collector.host, RecordedEpisodes)
    task = Task(env="client", seed=seed_for("test", 0), split="test")
    return (await collector.host.open(EpisodeKey(run_seed=run.config.seed, round=0, task=task))).access


def configure_trainer(overrides: Overrides, resume: str | None) -> Config:
    """Return the settings of a run whose loop is the user's own. Raises UserError for those without effect."""
    config = configure(AGENT_ENV if resume is None else None, resume=resume, overrides=overrides)
    refused = {
        "rollout.max_staleness": config.rollout.max_staleness > 0,
        "curriculum.pool": config.curriculum.pool > 0,
        "eval.every": config.eval.every > 0,
        "data.sources": bool(config.data.sources),
        f"agent.{config.agent.implied_by}": isinstance(config.agent, StartedAgent),
        "env.kind": config.env.kind != AGENT_ENV,
        "rollout.source": not isinstance(config.rollout.source, AutoSource),
        "algo.estimator": not isinstance(config.algo.estimator, OnPolicySettings),
        "algo.advantage": config.algo.needs_greedy,
    }
    for key, is_set in refused.items():
        if is_set:
            raise UserError(f"{key} has no effect in tw.Trainer, whose loop is yours: remove it, or use tw.train.")
    return config
