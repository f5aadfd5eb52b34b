"""`tw.Trainer`: training steps for a program that keeps its own loop and its own agent."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.trajectory import Group
from turnwise.envs.agent.tasks import task_of_value
from turnwise.evaluation.episodes import Evaluation
from turnwise.gateway.agent_episodes import AgentCollector
from turnwise.gateway.agents import AgentFunction, FunctionAgent, make_client
from turnwise.report.terminal import make_console
from turnwise.rollout.collect import CollectedGroups, DrawCounts
from turnwise.run.agents import check_agent_function
from turnwise.run.keywords import KEYWORDS, dotted_settings
from turnwise.run.remote_trainer import open_remote
from turnwise.run.trainer_backend import TrainerBackend, configure_trainer, open_local
from turnwise.run.training_run import OnStep
from turnwise.user_code.references import refuse_while_importing

if TYPE_CHECKING:  # its package is optional
    from openai import AsyncOpenAI


class Trainer:
    """Training steps for a loop of your own, over an agent of your own.

        async with tw.Trainer(model="tiny", algo="grpo") as trainer:
            for batch in batches:
                groups = await trainer.gather(my_agent, batch, group_size=8)
                metrics = await trainer.step(groups)

    The run folder, the viewer, alarms and checkpoints are those of `tw.train`. Leaving the block saves a checkpoint;
    `tw.Trainer(resume="runs/NAME")` continues from it.

    With `tw.Trainer(url="http://localhost:8000", api_key=TOKEN)` the agent runs here, and the model is trained by
    `turnwise serve --train` on another machine, whose command line has the settings.
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
        url: str | None = None,
        api_key: str | None = None,
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
            url: Address of `turnwise serve --train`; excludes all settings, which are the server's.
            api_key: Token that the server printed.
            on_step: Called with the metrics of each step.
            quiet: Print nothing.
            settings: Any setting, such as train__learning_rate=1e-5.
        """
        refuse_while_importing("tw.Trainer")
        named = {"model.name": None if model is None else str(model), "algo.advantage": algo, "train.steps": steps}
        given = named | {"seed": seed, "record.name": name}
        given |= dotted_settings(settings, KEYWORDS["tw.Trainer"])
        overrides = [(key, value) for key, value in given.items() if value is not None]
        self._on_step, self._console = on_step, Console(quiet=True) if quiet else make_console()
        self._backend: TrainerBackend | None = None
        self._exits = AsyncExitStack()
        self._config: Config | None = None
        self._last_failure: Exception | None = None
        self._open_backend: Callable[[], AbstractAsyncContextManager[TrainerBackend]]
        if url is not None:
            self._open_backend = _remote(url, api_key, [*dict(overrides), *(["resume"] if resume is not None else [])])
        else:
            self._config = configure_trainer(overrides, None if resume is None else str(resume))
            keys = [] if resume is not None else [key for key, _ in overrides]
            self._open_backend = partial(open_local, self._config, keys, self._console, resume=resume is not None)
        self._begin_batch()

    async def open(self) -> Self:
        """Load the model and start the gateway, as `async with` does: for a notebook with several cells."""
        async with AsyncExitStack() as exits:
            self._backend = await exits.enter_async_context(self._open_backend())
            self._exits = exits.pop_all()
        return self

    async def close(self) -> None:
        """End the run that `open` began: save a checkpoint, unless the weights are no longer finite."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *error: Any) -> None:
        self._backend = None
        await self._exits.__aexit__(*error)

    @property
    def config(self) -> Config:
        """Settings of the run. With `url` they are the server's, known inside the block."""
        return self._config or self._open.config

    @property
    def path(self) -> Path:
        """The run folder. With `url`, it is on the server."""
        return self._open.path

    @property
    def steps_done(self) -> int:
        """Number of finished training steps, those before a resume included."""
        return self._open.steps_done

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
        backend = self._open
        count = group_size or backend.config.rollout.group_size
        collected = await self._collector(agent, evaluation=False).collect(
            [task_of_value(task, "train") for task in tasks],
            group_size=count,
            round=backend.steps_done,
            drawn=self._drawn,
            progress=backend.show,
        )
        self._counts += collected.counts
        self._last_failure = collected.last_failure or self._last_failure
        return list(collected.groups)

    async def step(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Train on the groups, publish the new weights and return the metrics of the step."""
        if not groups:
            raise UserError("trainer.step needs at least one group: pass what trainer.gather returned.")
        backend = self._open
        collected = CollectedGroups(groups=tuple(groups), counts=self._counts, last_failure=self._last_failure)
        metrics = await backend.step(collected)
        self._begin_batch()
        if self._on_step is not None:
            self._on_step(metrics)
        return metrics

    async def evaluate(self, agent: AgentFunction, tasks: Sequence[Any], *, name: str = "validation") -> Evaluation:
        """Run the agent once per task with the sampling of `eval`, record the episodes, and return their success.

        Args:
            agent: As in `gather`.
            tasks: As in `gather`; held-out ones.
            name: Name of the evaluation in the metrics.
        """
        collector = self._collector(agent, evaluation=True)
        return await self._open.evaluate(collector, name, [task_of_value(task, "test") for task in tasks])

    def client(self) -> "AsyncOpenAI":
        """Return a client of the current policy, for anything besides training. Its calls are not trained on."""
        client = make_client(self._open.access)
        self._exits.push_async_callback(client.close)
        return client

    def save(self) -> Path:
        """Save a checkpoint now and return its folder. Every `checkpoint.every` steps one is saved anyway."""
        return self._open.save()

    @property
    def _open(self) -> TrainerBackend:
        if self._backend is None:
            raise UserError(
                "The trainer is not open: use it inside `async with tw.Trainer(...) as trainer:`, or call `await "
                "trainer.open()` first."
            )
        return self._backend

    def _collector(self, agent: AgentFunction, *, evaluation: bool) -> AgentCollector:
        function = FunctionAgent(check_agent_function(agent))
        return replace(self._open.collector(evaluation=evaluation), agent=function)

    def _begin_batch(self) -> None:
        """Forget what was gathered for the last step."""
        self._drawn, self._counts = DrawCounts(), Counter[str]()
        self._last_failure = None


def _remote(
    url: str, api_key: str | None, settings: Sequence[str]
) -> Callable[[], AbstractAsyncContextManager[TrainerBackend]]:
    """Return what connects to the server. Its settings cannot be changed from here."""
    if settings:
        raise UserError(f"{settings[0]} belongs to the server: give it to `turnwise serve --train` there.")
    if not api_key:
        raise UserError("tw.Trainer(url=...) needs api_key: the token that `turnwise serve --train` printed.")
    return partial(open_remote, url, api_key)
