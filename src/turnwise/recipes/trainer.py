"""`tw.Trainer`: training steps for a program that keeps its own loop and its own agent."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from turnwise.algos.advantages import ADVANTAGES
from turnwise.config.agent import AGENT_ENV
from turnwise.config.schema import Config
from turnwise.core.errors import DivergedError, UserError
from turnwise.core.random_streams import address
from turnwise.core.references import reference_name, refuse_while_importing
from turnwise.core.task import EpisodeKey, Split, Task
from turnwise.core.trajectory import Group
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.evaluation.episodes import Evaluation
from turnwise.gateway.agents import Access, AgentCollector, AgentFunction, FunctionAgent, make_client
from turnwise.recipes.agents import check_agent_function
from turnwise.recipes.configure import configure
from turnwise.recipes.environment_mix import build_environment_mix
from turnwise.recipes.run import ReinforcementRun
from turnwise.recipes.sources import find_checkpoint
from turnwise.recipes.training_run import OWN_LOOP, OnStep, open_run, resolve
from turnwise.recipes.validate import check_settings
from turnwise.report.terminal import make_console
from turnwise.rollout.collect import CollectedGroups, DrawCounts, GroupCollector
from turnwise.training.checkpoints import State
from turnwise.training.loop import Loop
from turnwise.training.rollout_stage import RolloutStage
from turnwise.training.step_record import StepTimer

if TYPE_CHECKING:  # its package is optional
    from openai import AsyncOpenAI


@dataclass(slots=True)
class _Opened:
    """What an open trainer works with."""

    run: ReinforcementRun
    loop: Loop
    state: State
    access: Access
    """For `Trainer.client`."""


class Trainer:
    """Training steps for a loop of your own, over an agent of your own.

        async with tw.Trainer(model="tiny", algo="grpo") as trainer:
            for batch in batches:
                groups = await trainer.gather(my_agent, batch, group_size=8)
                metrics = await trainer.step(groups)

    The run folder, the viewer, alarms and checkpoints are those of `tw.train`. Leaving the block saves a checkpoint;
    `tw.Trainer(resume="runs/NAME")` continues from it.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        algo: str | None = None,
        steps: int | None = None,
        seed: int | None = None,
        name: str | None = None,
        resume: str | Path | None = None,
        on_step: OnStep | None = None,
        quiet: bool = False,
        **settings: Any,
    ) -> None:
        """Check the settings. The model is loaded when the block is entered.

        Args:
            model: As in `tw.train`.
            algo: Advantage estimator (`algo.advantage`).
            steps: Planned number of steps, for the learning-rate schedule and the progress display (`train.steps`).
            seed: Seed of everything random.
            name: Name of the run folder.
            resume: Run to continue; excludes the other settings.
            on_step: Called with the metrics of each step.
            quiet: Print nothing.
            settings: Any setting, such as train__learning_rate=1e-5.
        """
        refuse_while_importing("tw.Trainer")
        named = {"model.name": None if model is None else str(model), "algo.advantage": algo, "train.steps": steps}
        given = named | {"seed": seed, "record.name": name}
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        overrides = [(key, value) for key, value in given.items() if value is not None]
        self._resume = resume is not None
        self.config = (
            configure(AGENT_ENV, overrides=overrides)
            if resume is None
            else configure(resume=str(resume), overrides=overrides)
        )
        _check_own_loop(self.config)
        self._override_keys = [] if self._resume else [key for key, _ in overrides]
        self._on_step, self._console = on_step, Console(quiet=True) if quiet else make_console()
        self._exits = AsyncExitStack()
        self._opened: _Opened | None = None
        self._metrics: dict[str, Any] = {}
        self._last_failure: Exception | None = None
        self._begin_batch()

    async def __aenter__(self) -> Self:
        config, environments = self.config, build_environment_mix(self.config)
        await asyncio.to_thread(check_settings, config, self._override_keys)
        config = resolve(config)
        async with AsyncExitStack() as exits:
            folder = exits.enter_context(
                open_run(
                    config,
                    environments,
                    self._console,
                    method=reference_name(config.algo.advantage),
                    command=OWN_LOOP,
                    resume=self._resume,
                    if_finished="Start another run.",
                )
            )
            run = ReinforcementRun(config, environments, folder, self._console, self._keep_metrics)
            loop, state = exits.enter_context(run.open(self._resume))
            assert isinstance(loop, Loop)
            exits.push_async_callback(run.services.close)
            await exits.enter_async_context(run.open_gateway())
            await loop.begin(state)
            self._opened = _Opened(run, loop, state, await _open_access(run))
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save a checkpoint, unless the weights are no longer finite."""
        try:
            if not isinstance(error, DivergedError):
                self.save()
        finally:
            self._opened = None
            await self._exits.__aexit__(kind, error, trace)

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._open.run.folder.path

    @property
    def steps_done(self) -> int:
        """Number of finished training steps, those before a resume included."""
        return self._open.state.step

    async def gather(self, agent: AgentFunction, tasks: Sequence[Any], *, group_size: int | None = None) -> list[Group]:
        """Run the agent `group_size` times on each task and return one group per task.

        Failed runs are retried, then left out; a group of fewer than two is left out too. Pass the groups to `step`
        before the next step: they were sampled with the current weights.

        Args:
            agent: `async def agent(client, task)`, which returns its reward as a number or a `tw.Outcome`. `client` is
                an `openai.AsyncOpenAI` of this run alone.
            tasks: JSON values: texts, numbers, dictionaries, lists.
            group_size: Runs per task (`rollout.group_size`).
        """
        opened, count = self._open, group_size or self.config.rollout.group_size
        if not self._episodes:
            self._timer = StepTimer()
        collected = await self._collector(opened.run.stack.collector, agent).collect(
            [_task(each, "train") for each in tasks],
            group_size=count,
            round=opened.state.step,
            drawn=self._drawn,
            progress=lambda done, total: opened.loop.progress.phase("rollout", done, total),
        )
        self._episodes += len(tasks) * count
        self._counts += collected.counts
        self._last_failure = collected.last_failure or self._last_failure
        return list(collected.groups)

    async def step(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Train on the groups, publish the new weights and return the metrics of the step."""
        if not groups:
            raise UserError("trainer.step needs at least one group: pass what trainer.gather returned")
        opened = self._open
        loop, gateway = opened.loop, opened.run.stack.gateway
        assert gateway is not None and isinstance(loop.rollout_stage, RolloutStage)
        collected = CollectedGroups(groups=tuple(groups), counts=self._counts, last_failure=self._last_failure)
        members = sum(len(group.trajectories) for group in groups)
        rollout = await loop.rollout_stage.use(collected, episodes=members + self._counts["dropped"])
        await gateway.pause()
        try:
            state = await loop.train_on(rollout, opened.state, self._timer)
            opened.state = await loop.finish_step(state)
        finally:
            gateway.resume()
        self._begin_batch()
        return self._metrics

    async def evaluate(self, agent: AgentFunction, tasks: Sequence[Any], *, name: str = "validation") -> Evaluation:
        """Run the agent once per task with the sampling of `eval`, record the episodes, and return their success.

        Args:
            agent: As in `gather`.
            tasks: As in `gather`; held-out ones.
            name: Name of the evaluation in the metrics.
        """
        opened = self._open
        evaluator = replace(opened.loop.evaluator, collector=self._collector(opened.run.stack.evaluator, agent))
        return await evaluator.evaluate(name, [_task(each, "test") for each in tasks], opened.state.step)

    def client(self) -> "AsyncOpenAI":
        """Return a client of the current policy, for anything besides training. Its calls are not trained on."""
        client = make_client(self._open.access)
        self._exits.push_async_callback(client.close)
        return client

    def save(self) -> Path:
        """Save a checkpoint now and return its folder. Every `checkpoint.every` steps one is saved anyway."""
        opened = self._open
        opened.loop.save(opened.state)
        return find_checkpoint(self.path, None)

    @property
    def _open(self) -> "_Opened":
        if self._opened is None:
            raise UserError("the trainer is not open: use it inside `async with tw.Trainer(...) as trainer:`")
        return self._opened

    def _collector(self, collector: GroupCollector, agent: AgentFunction) -> AgentCollector:
        assert isinstance(collector, AgentCollector)
        return replace(collector, agent=FunctionAgent(check_agent_function(agent)), find_task=_read_task)

    def _begin_batch(self) -> None:
        """Forget what was gathered for the last step."""
        self._drawn, self._episodes, self._timer = DrawCounts(), 0, StepTimer()
        self._counts: Counter[str] = Counter()
        self._last_failure = None

    def _keep_metrics(self, row: Mapping[str, Any]) -> None:
        self._metrics = dict(row)
        if self._on_step is not None:
            self._on_step(row)


async def _open_access(run: ReinforcementRun) -> Access:
    """Open an episode that is not trained on. It is closed with the gateway."""
    gateway, collector = run.stack.gateway, run.stack.evaluator
    assert gateway is not None and isinstance(collector, AgentCollector)
    task = Task(env="client", seed=seed_for("test", 0), split="test")
    episode = await gateway.open_episode(EpisodeKey(run_seed=run.config.seed, round=0, task=task), collector.limits)
    return Access(url=gateway.url, key=episode.bearer)


def _task(value: Any, split: Split) -> Task:
    """Return the task of a value that the program passed. Its seed is a hash of the value."""
    try:
        seed = seed_for(split, address("agent task", value) % SEEDS_PER_SPLIT)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"a task is not a JSON value ({error}): pass texts, numbers, dictionaries or lists") from None
    return Task(env=AGENT_ENV, seed=seed, split=split, params={"task": value})


def _read_task(task: Task) -> Any:
    return task.params["task"]


def _check_own_loop(config: Config) -> None:
    """Refuse settings that only `turnwise train` can follow."""
    refused = {
        "rollout.max_staleness": config.rollout.max_staleness > 0,
        "curriculum.pool": config.curriculum.pool > 0,
        "eval.every": config.eval.every > 0,
        "data.sources": bool(config.data.sources),
        "agent.command": bool(config.agent.command),
        "agent.function": bool(config.agent.function),
        "env.kind": config.env.kind != AGENT_ENV,
        "algo.method": config.algo.method != "on_policy",
        "algo.advantage": ADVANTAGES[config.algo.advantage].needs_greedy,
    }
    for key, is_set in refused.items():
        if is_set:
            raise UserError(f"{key} has no effect in tw.Trainer, whose loop is yours: leave it out, or use tw.train")
