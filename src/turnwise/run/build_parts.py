"""Build the parts of a run of reinforcement learning that exist before its loop."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from turnwise.concurrency.spans import SpanLog
from turnwise.config.schema import Config
from turnwise.core.errors import LearnerLost
from turnwise.core.learner import Learner
from turnwise.core.task import Task
from turnwise.data.replay import Replay
from turnwise.models.loading.load import LoadedModel
from turnwise.models.memory.plan import MemoryPlan
from turnwise.record.rows import VALIDATION
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import open_replay
from turnwise.report.progress import Progress
from turnwise.rewards.services import RewardServices
from turnwise.rollout.tasks import TaskSource
from turnwise.run.build import PolicyStack, build_evaluator, build_policy_stack
from turnwise.run.build_learner import build_learner, share_value_head
from turnwise.run.datasets import STORED_CAPACITY, fill_replay
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.load_policy import load_policy_of_run
from turnwise.run.resources import memory_plan
from turnwise.run.restore import open_checkpoints
from turnwise.run.roles import frozen_players
from turnwise.training.checkpoints import Checkpoints
from turnwise.training.sources.stored import score_rendered
from turnwise.training.validation import Evaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """Folder, tasks and display of a run, which exist before its parts."""

    environments: EnvironmentMix
    tasks: TaskSource
    validation_tasks: list[Task]
    folder: RunFolder
    progress: Progress
    services: RewardServices
    resources: ExitStack
    """Closed after training, such as the connection to a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Model, engine, learner and files of a run."""

    config: Config
    run: OpenRun
    loaded: LoadedModel
    warmup_s: float
    stack: PolicyStack
    learner: Learner
    restart_learner: Callable[[LearnerLost], None]
    """Called when a process of the learner is lost."""
    plan: MemoryPlan
    replay: Replay | None
    """Stored episodes to train on; None plays them."""
    evaluator: Evaluator
    checkpoints: Checkpoints
    spans: SpanLog | None
    """Gets who does what, for runs whose parts work side by side."""

    async def validate(self, step: int) -> float:
        """Evaluate on the validation split, and return the success."""
        return (await self.evaluator.evaluate(VALIDATION, self.run.validation_tasks, step)).success


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Engine and learner of a run, in this process or on a cluster."""

    stack: PolicyStack
    learner: Learner
    restart_learner: Callable[[LearnerLost], None]


def build_parts(given: Config, run: OpenRun) -> Parts:
    """Load the model, and build engine, learner and the rest around it. Stored episodes are read."""
    config = _use_model_here(given)
    loaded, warmup_s = load_policy_of_run(config, run.environments, run.folder.path, run.progress)
    plan = memory_plan(config, loaded.model, frozen=len(set(frozen_players(run.environments).values())))
    if plan.items:
        run.progress.note(f"memory: {plan.describe()}")
    spans = SpanLog() if config.cluster.is_used or config.rollout.max_staleness else None
    if config.cluster.is_used:
        workers = _start_workers(given, run, loaded, plan, spans)
    else:
        workers = _build_workers(config, run, loaded, plan)
    stack, learner = workers.stack, workers.learner
    return Parts(
        config=config,
        run=run,
        loaded=loaded,
        warmup_s=warmup_s,
        stack=stack,
        learner=learner,
        restart_learner=workers.restart_learner,
        plan=plan,
        replay=_fill_replay(config, run, loaded, stack, learner, plan) if config.data.sources else None,
        evaluator=build_evaluator(stack, config.record, run.folder, run.progress),
        checkpoints=open_checkpoints(config.checkpoint, loaded, run.folder),
        spans=spans,
    )


def _use_model_here(config: Config) -> Config:
    """Return the settings of this process, which only reads the model if ranks on a cluster train it."""
    if not config.cluster.learners:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})


def _build_workers(config: Config, run: OpenRun, loaded: LoadedModel, plan: MemoryPlan) -> Workers:
    stack = build_policy_stack(config, run.environments, loaded, plan.pages, run=run.folder.path)
    learner = build_learner(config.algo, config.critic, config.train, loaded.model, plan)
    share_value_head(config.rollout, stack.engine, learner)
    return Workers(stack=stack, learner=learner, restart_learner=_raise_loss)


def _raise_loss(loss: LearnerLost) -> None:
    """Refuse to restart the learner of this process, which is never lost alone."""
    raise loss


def _start_workers(
    config: Config, run: OpenRun, loaded: LoadedModel, plan: MemoryPlan, spans: SpanLog | None
) -> Workers:
    from turnwise.run.clustering import build_actors

    actors = run.resources.enter_context(
        build_actors(config, run.environments, loaded, plan, run.folder.path, run.progress.note)
    )
    actors.record_spans(spans)
    return Workers(stack=actors.stack, learner=actors.learner, restart_learner=actors.restart_learner)


def _fill_replay(
    config: Config, run: OpenRun, loaded: LoadedModel, stack: PolicyStack, learner: Learner, plan: MemoryPlan
) -> Replay:
    """Read the stored episodes. The initial policy scores those without recorded log-probabilities."""
    progress, replay = run.progress, open_replay(run.folder.replay, STORED_CAPACITY)
    vocabulary = loaded.model.get_input_embeddings().num_embeddings
    fill_replay(replay, config, stack.renderer, vocabulary, progress.note)
    scored = score_rendered(replay, learner, plan.micro_tokens, partial(progress.phase, "reference"))
    if scored:
        progress.note(
            f"{scored:,} episodes have no log-probabilities of a sampler: those of the initial policy "
            f"({loaded.name}) are used instead"
        )
    return replay
