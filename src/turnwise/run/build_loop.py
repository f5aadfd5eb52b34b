"""Build the training loop of a run: source of episodes, estimator, and the parts around a step."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from turnwise.algos.alarms import AlarmSettings
from turnwise.config.recording import EvalConfig
from turnwise.core.learner import Learner
from turnwise.models.loading.load import device_of
from turnwise.record.run_folder import RunFolder
from turnwise.report.trajectory_images import TrajectoryImages
from turnwise.run.build_estimator import build_on_policy, choose_estimator
from turnwise.run.build_learner import build_coefficients, estimate_settings, update_settings
from turnwise.run.build_parts import Parts
from turnwise.run.build_selfplay import build_selfplay
from turnwise.run.build_source import build_source, choose_source
from turnwise.run.load_policy import model_loader
from turnwise.training.checkpoints import Checkpoints, SaveCheckpoints, restore
from turnwise.training.coefficients import Coefficients
from turnwise.training.diagnostics import MAX_ROLLBACKS, Alarms, Diagnostics, Rollback
from turnwise.training.energy import EnergyMeter, find_counter
from turnwise.training.estimators.archer import Archer
from turnwise.training.learner_thread import LearnerThread, ThisThread
from turnwise.training.loop import JudgeBudgets, Loop, LoopLimits, ReleaseCaches
from turnwise.training.selfplay import Opponents
from turnwise.training.sources.played import TaskResults
from turnwise.training.sources.played_ahead import PlayedAhead
from turnwise.training.step import Part, RunParts, Source
from turnwise.training.step_record import EngineTimes, ProgressDisplay, RunFiles, TrajectoryFiles, WorkerSpans
from turnwise.training.validation import Validation


def build_loop(built: Parts) -> Loop:
    config, stack, learner = built.config, built.stack, built.learner
    collector, opponents = build_selfplay(built)
    results, coefficients = TaskResults(built.run.tasks), _build_coefficients(built)
    given = RunParts(
        config=config,
        learner=learner,
        engine=stack.engine,
        tasks=built.run.tasks,
        collector=collector,
        source=build_source(built, collector, results),
        on_policy=build_on_policy(built, coefficients),
    )
    source = choose_source(given)
    estimator = choose_estimator(built, replace(given, source=source))
    states: list[Part] = [part for part in (source, estimator, opponents) if isinstance(part, Part)]
    parts = [*states, results, coefficients, JudgeBudgets(built.run.services), *_recording_parts(built)]
    parts += _diagnostic_parts(built, source, coefficients)
    if built.plan.releases_cache:
        frozen = [] if opponents is None or opponents.frozen is None else [opponents.frozen.engine]
        parts.append(ReleaseCaches([stack.engine, *frozen]))
    parts += build_saving_parts(
        config.eval,
        learner,
        built.checkpoints,
        built.run.folder,
        steps=config.train.steps,
        validate=built.validate,
        others=parts,
        on_save=_on_save(estimator, opponents),
    )
    return Loop(
        source=source,
        estimator=estimator,
        learner=learner,
        engine=stack.engine,
        parts=parts,
        update_settings=update_settings(config.algo, config.critic, config.train, config.seed, built.plan.micro_tokens),
        limits=LoopLimits(steps=config.train.steps, seconds=built.run.progress.limit_s),
        runner=LearnerThread() if config.rollout.max_staleness else ThisThread(),
        spans=built.spans,
    )


def _build_coefficients(built: Parts) -> Coefficients:
    kl_in_loss = estimate_settings(built.config.algo, built.config.reward).kl_in_reward is None
    return Coefficients(build_coefficients(built.config.algo), kl_in_loss=kl_in_loss)


def _recording_parts(built: Parts) -> list[Part]:
    folder, record, renderer = built.run.folder, built.config.record, built.stack.renderer
    pictures = TrajectoryImages(
        folder.trajectories,
        every=record.pictures_every,
        warn=built.run.progress.note,
    )
    counter = None if built.config.cluster.is_used else find_counter(device_of(built.loaded.model))
    return [
        EngineTimes(built.stack.engine),
        *([] if counter is None else [EnergyMeter(counter)]),
        TrajectoryFiles(
            folder, every=record.trajectories, decode=renderer.decode, name_token=renderer.name_token, pictures=pictures
        ),
        RunFiles(folder),
        *([] if built.spans is None else [WorkerSpans(folder, built.spans)]),
        ProgressDisplay(built.run.progress, folder),
    ]


def _diagnostic_parts(built: Parts, source: Source, coefficients: Coefficients) -> list[Part]:
    config, learner, settings = built.config, built.learner, built.config.diagnose
    diagnostics = Diagnostics(
        learner,
        update_settings(config.algo, config.critic, config.train, config.seed, built.plan.micro_tokens),
        every=settings.every,
        compares_groups=not config.algo.estimator.trains_critic,
    )
    load = model_loader(config.model)
    rollback = Rollback(
        built.checkpoints,
        learner,
        lambda folder, state: restore(folder, learner, state, load),
        at_most=MAX_ROLLBACKS if settings.answer == "roll_back" else 0,
        on_restore=[source.restart] if isinstance(source, PlayedAhead) else [],
    )
    limits = AlarmSettings(max_grad_norm=learner.max_grad_norm)
    explore_more = coefficients.explore_more if settings.answer == "adjust" else None
    return [diagnostics, Alarms(built.run.folder, built.run.progress.note, limits, rollback, explore_more)]


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
