"""Build the training loop of a run: source of episodes, estimator, and the parts around a step."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from turnwise.algos.alarms import AlarmSettings
from turnwise.algos.estimators import EstimatorSettings, UtteranceEstimator
from turnwise.algos.user_code import naming
from turnwise.concurrency.spans import SpanLog
from turnwise.config.recording import EvalConfig
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.learner import Learner
from turnwise.core.task import Task
from turnwise.data.replay import Replay
from turnwise.models.loading.load import LoadedModel, device_of
from turnwise.models.memory.plan import MemoryPlan
from turnwise.record.rows import VALIDATION
from turnwise.record.run_folder import RunFolder
from turnwise.report.progress import Progress
from turnwise.report.trajectory_images import TrajectoryImages
from turnwise.rewards.services import RewardServices
from turnwise.rollout.collect import GroupCollector
from turnwise.rollout.settings import SourceSettings
from turnwise.rollout.tasks import TaskSource
from turnwise.run.build import PolicyStack, build_rewards, model_loader
from turnwise.run.build_archer import build_archer
from turnwise.run.build_learner import build_coefficients, estimate_settings, update_settings
from turnwise.run.build_selfplay import build_selfplay
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.training.archer import Archer
from turnwise.training.asynchronous import LearnerThread, PlayedAhead, ThisThread
from turnwise.training.checkpoints import Checkpoints, SaveCheckpoints, restore
from turnwise.training.coefficients import Coefficients
from turnwise.training.diagnostics import MAX_ROLLBACKS, Alarms, Diagnostics, Rollback
from turnwise.training.energy import EnergyMeter, find_counter
from turnwise.training.estimate import OnPolicy
from turnwise.training.learner import LocalLearner
from turnwise.training.loop import JudgeBudgets, Loop, LoopLimits, ReleaseCaches
from turnwise.training.offline import Stored
from turnwise.training.played import Played, RetryRounds, TaskResults, filter_groups
from turnwise.training.selfplay import Opponents
from turnwise.training.step import Estimator, Part, RunParts, Source
from turnwise.training.step_record import EngineTimes, ProgressDisplay, RunFiles, TrajectoryFiles, WorkerSpans
from turnwise.training.validation import Evaluator, Validation


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopInputs:
    """Model, engine, learner and files, which exist before the loop."""

    config: Config
    environments: EnvironmentMix
    tasks: TaskSource
    validation_tasks: list[Task]
    loaded: LoadedModel
    stack: PolicyStack
    learner: Learner
    plan: MemoryPlan
    replay: Replay | None
    """Stored episodes to train on; None plays them."""
    evaluator: Evaluator
    checkpoints: Checkpoints
    folder: RunFolder
    progress: Progress
    services: RewardServices
    spans: SpanLog | None = None
    """Gets who does what, for runs whose parts work side by side."""

    async def validate(self, step: int) -> float:
        """Evaluate on the validation split, and return the success."""
        return (await self.evaluator.evaluate(VALIDATION, self.validation_tasks, step)).success


def build_loop(given: LoopInputs) -> Loop:
    config, stack, learner = given.config, given.stack, given.learner
    collector, opponents = build_selfplay(
        config,
        given.environments,
        given.tasks,
        given.loaded,
        stack,
        learner,
        given.checkpoints,
        given.folder,
        given.progress,
    )
    results, coefficients = TaskResults(given.tasks), _build_coefficients(given)
    source, estimator = _build_source_and_estimator(given, collector, results, coefficients)
    states: list[Part] = [part for part in (source, estimator, opponents) if isinstance(part, Part)]
    parts = [*states, results, coefficients, JudgeBudgets(given.services), *_recording_parts(given)]
    parts += _diagnostic_parts(given, source, coefficients)
    if given.plan.releases_cache:
        frozen = [] if opponents is None or opponents.frozen is None else [opponents.frozen.engine]
        parts.append(ReleaseCaches([stack.engine, *frozen]))
    parts += build_saving_parts(
        config.eval,
        learner,
        given.checkpoints,
        given.folder,
        steps=config.train.steps,
        validate=given.validate,
        others=parts,
        on_save=_on_save(estimator, opponents),
    )
    return Loop(
        source=source,
        estimator=estimator,
        learner=learner,
        engine=stack.engine,
        parts=parts,
        update_settings=update_settings(config.algo, config.critic, config.train, config.seed, given.plan.micro_tokens),
        limits=LoopLimits(steps=config.train.steps, seconds=given.progress.limit_s),
        runner=LearnerThread() if config.rollout.max_staleness else ThisThread(),
        spans=given.spans,
    )


def _build_coefficients(given: LoopInputs) -> Coefficients:
    kl_in_loss = estimate_settings(given.config.algo, given.config.reward).kl_in_reward is None
    return Coefficients(build_coefficients(given.config.algo), kl_in_loss=kl_in_loss)


def _build_source_and_estimator(
    given: LoopInputs, collector: GroupCollector, results: TaskResults, coefficients: Coefficients
) -> tuple[Source, Estimator[Any]]:
    """Build those of the settings; a user's own (FILE.py:Name) from the built-in ones."""
    config, source = given.config, _build_source(given, collector, results)
    allowed_sets = given.stack.renderer.grammars.allowed_sets
    on_policy = OnPolicy(
        estimate_settings(config.algo, config.reward, given.plan.micro_tokens, allowed_sets), coefficients
    )
    parts = RunParts(
        config=config,
        learner=given.learner,
        engine=given.stack.engine,
        tasks=given.tasks,
        collector=collector,
        source=source,
        on_policy=on_policy,
    )
    chosen_source, chosen_estimator = config.rollout.source, config.algo.estimator
    if isinstance(chosen_source, SourceSettings):
        source = _build_own(chosen_source, "rollout.source", parts, "groups")
        parts = replace(parts, source=source)
    if isinstance(chosen_estimator, EstimatorSettings):
        return source, _build_own(chosen_estimator, "algo.estimator", parts, "sample", "estimate")
    if isinstance(chosen_estimator, UtteranceEstimator):
        assert isinstance(given.learner, LocalLearner), "a cluster's learner has no critic of utterances"
        return source, build_archer(config, given.stack, given.learner, given.folder.replay, given.replay, given.plan)
    return source, on_policy


def _build_own(chosen: SourceSettings | EstimatorSettings, setting: str, parts: RunParts, *methods: str) -> Any:
    """Build the user's source or estimator; UserError if it does not have the methods of the protocol."""
    with naming(chosen, setting):
        built = chosen.build(parts)
    if missing := [name for name in methods if not callable(getattr(built, name, None))]:
        raise UserError(
            f"{setting} {chosen.kind}: build returned {type(built).__name__}, which has no method {missing[0]}. Return "
            f"an object with {' and '.join(methods)}."
        )
    return built


def _build_source(given: LoopInputs, collector: GroupCollector, results: TaskResults) -> Source:
    config, stack, show = given.config, given.stack, given.progress.phase
    select = partial(
        filter_groups,
        learner=given.learner,
        algo=config.algo,
        micro_tokens=given.plan.micro_tokens,
        allowed_sets=stack.renderer.grammars.allowed_sets,
    )
    if given.replay is not None:
        return Stored(
            replay=given.replay,
            algo=config.algo,
            select=select,
            count=config.rollout.groups,
            group_size=config.rollout.group_size,
            run_seed=config.seed,
            show=show,
        )
    played = Played(
        tasks=given.tasks,
        results=results,
        collector=collector,
        greedy=stack.greedy if config.algo.needs_greedy else None,
        rewards=build_rewards(config.reward, config.rollout, given.services.judges, stack.renderer.decode),
        select=select,
        scale=config.algo.filter.rate_scale,
        count=config.rollout.groups,
        group_size=config.rollout.group_size,
        refill=config.algo.filter.refill_rounds,
        retry=_retry_rounds(config.rollout.retry_unsolved, stack),
        show=show,
    )
    staleness = config.rollout.max_staleness
    if not staleness:
        return played
    return PlayedAhead(
        played,
        max_staleness=staleness,
        steps=config.train.steps,
        in_flight=config.rollout.in_flight,
        spans=given.spans,
    )


def _retry_rounds(rounds: int, stack: PolicyStack) -> RetryRounds | None:
    if not rounds:
        return None
    assert stack.retry is not None, "check_settings_fit rejects rollout.retry_unsolved on a cluster"
    return RetryRounds(collector=stack.retry, rounds=rounds)


def _recording_parts(given: LoopInputs) -> list[Part]:
    folder, record, renderer = given.folder, given.config.record, given.stack.renderer
    pictures = TrajectoryImages(
        folder.trajectories,
        every=record.pictures_every,
        warn=given.progress.note,
    )
    counter = None if given.config.cluster.is_used else find_counter(device_of(given.loaded.model))
    return [
        EngineTimes(given.stack.engine),
        *([] if counter is None else [EnergyMeter(counter)]),
        TrajectoryFiles(
            folder, every=record.trajectories, decode=renderer.decode, name_token=renderer.name_token, pictures=pictures
        ),
        RunFiles(folder),
        *([] if given.spans is None else [WorkerSpans(folder, given.spans)]),
        ProgressDisplay(given.progress, folder),
    ]


def _diagnostic_parts(given: LoopInputs, source: Source, coefficients: Coefficients) -> list[Part]:
    config, learner, settings = given.config, given.learner, given.config.diagnose
    diagnostics = Diagnostics(
        learner,
        update_settings(config.algo, config.critic, config.train, config.seed, given.plan.micro_tokens),
        every=settings.every,
        compares_groups=not config.algo.estimator.trains_critic,
    )
    load = model_loader(config.model)
    rollback = Rollback(
        given.checkpoints,
        learner,
        lambda folder, state: restore(folder, learner, state, load),
        at_most=MAX_ROLLBACKS if settings.answer == "roll_back" else 0,
        on_restore=[source.restart] if isinstance(source, PlayedAhead) else [],
    )
    limits = AlarmSettings(max_grad_norm=learner.max_grad_norm)
    explore_more = coefficients.explore_more if settings.answer == "adjust" else None
    return [diagnostics, Alarms(given.folder, given.progress.note, limits, rollback, explore_more)]


def _on_save(estimator: object, opponents: Opponents | None) -> list[Callable[[int], None]]:
    """Return what frees disk space after a checkpoint, given the oldest step that a run may be resumed from."""
    calls = list[Callable[[int], None]]()
    if isinstance(estimator, Archer):
        calls.append(estimator.replay.prune)
    if opponents is not None:
        calls.append(opponents.snapshots.drop_unneeded)
    return calls


def build_saving_parts(
    evaluation: EvalConfig,
    learner: Learner,
    checkpoints: Checkpoints,
    folder: RunFolder,
    *,
    steps: int,
    validate: Callable[[int], Awaitable[float | None]],
    others: Sequence[Part] = (),
    on_save: Sequence[Callable[[int], None]] = (),
) -> list[Part]:
    """Return validation and checkpoints, which save the states of all parts: `others` and their own."""
    saved = list(others)
    saver = SaveCheckpoints(checkpoints, learner, saved, steps=steps, on_save=on_save)
    saved.append(Validation(validate, folder, every=evaluation.every, steps=steps, best=saver))
    return [saved[-1], saver]
