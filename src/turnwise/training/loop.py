"""The training loop: roll out, score, estimate advantages, update, publish, record.

With `training/asynchronous.py` the rollouts of later steps run while the learner trains on this one's.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from turnwise.algos.alarms import AlarmSettings
from turnwise.config.schema import Config
from turnwise.core.errors import DivergedError, LearnerLost, UserError
from turnwise.core.learner import Learner, StepSettings
from turnwise.core.protocols import EngineControl
from turnwise.core.task import Task
from turnwise.core.trajectory import TokenName
from turnwise.evaluation.episodes import Evaluation
from turnwise.record.metrics import staleness_metrics
from turnwise.record.run_folder import RunFolder
from turnwise.report.formatting import first_line
from turnwise.report.progress import Progress
from turnwise.report.trajectory_images import TrajectoryImages
from turnwise.rewards.services import RewardServices
from turnwise.rollout.failures import DropMonitor
from turnwise.training.archer import Archer, FreshUtterance
from turnwise.training.archer_offline import OfflineArcher
from turnwise.training.asynchronous import LearnerThread
from turnwise.training.checkpoints import Checkpoints, State, step_of
from turnwise.training.diagnostics import AlarmWatcher, gradient_metrics, is_due, mutual_information_metrics, roll_back
from turnwise.training.estimate import (
    AdaptiveCoefficients,
    Estimate,
    EstimateSettings,
    check_finite_advantages,
    estimate,
)
from turnwise.training.rollout_stage import GroupSource, RolloutResult
from turnwise.training.selfplay import Opponents
from turnwise.training.skipped_steps import SkipMonitor
from turnwise.training.step_record import (
    EngineTimer,
    Evaluator,
    StepTimer,
    TokenStatistics,
    recorded_success,
    trajectory_rows,
)
from turnwise.training.update import UpdateSettings, update

LENGTH_STOP_WARNING = 0.2
"""Share of turns cut at rollout.max_new_tokens from which the first step warns."""


@dataclass(frozen=True, slots=True)
class _LearnerResult:
    """The learner's part of a step."""

    estimated: Estimate | None
    metrics: dict[str, float]
    diagnostics: dict[str, float]
    coefficients: AdaptiveCoefficients
    """For the next step."""
    statistics: TokenStatistics | None


class Loop:
    """Train from `state.step` on. Only the learner, its checkpoints and the run folder carry over between steps."""

    def __init__(
        self,
        *,
        config: Config,
        estimate_settings: EstimateSettings,
        update_settings: UpdateSettings,
        rollout_stage: GroupSource,
        evaluator: Evaluator,
        engine: EngineControl,
        learner: Learner,
        coefficients: AdaptiveCoefficients,
        checkpoints: Checkpoints,
        restore: Callable[[str, State], None],
        folder: RunFolder,
        progress: Progress,
        decode: Callable[[Sequence[int]], str],
        name_token: Callable[[int], TokenName],
        pictures: TrajectoryImages,
        validation_tasks: Sequence[Task] = (),
        opponents: Opponents | None = None,
        services: RewardServices | None = None,
        max_seconds: float | None = None,
        release_cache: bool = False,
        learner_thread: LearnerThread | None = None,
        archer: Archer | OfflineArcher | None = None,
    ) -> None:
        """`release_cache`: free the engines' KV caches after each rollout, for updates that need the memory.

        `learner_thread`: thread that runs the learner during asynchronous rollouts. None runs it in the event loop.
        `archer`: estimates the steps instead of algo.advantage.
        """
        self.config = config
        self.estimate_settings, self.update_settings = estimate_settings, update_settings
        self.rollout_stage, self.evaluator = rollout_stage, evaluator
        self.engine, self.learner, self.coefficients = engine, learner, coefficients
        self.checkpoints, self.restore = checkpoints, restore
        self.folder, self.progress = folder, progress
        alarm_settings = AlarmSettings(max_grad_norm=learner.max_grad_norm)
        self.watcher, self.drop_monitor = AlarmWatcher(report=self._alarm, settings=alarm_settings), DropMonitor()
        self.decode, self.name_token, self.pictures = decode, name_token, pictures
        self.validation_tasks, self.opponents = validation_tasks, opponents
        self.services = services or RewardServices()
        self.max_seconds, self.release_cache = max_seconds, release_cache
        self.learner_thread, self.archer = learner_thread, archer
        self._published: int | None = None
        """Version of the weights that the engine generates with."""
        self._publish_s = 0.0
        """Seconds that publishing the last step's weights took."""
        self._between_steps = False
        """Whether the learner's weights are those of no finished step: an update is running, or has failed."""
        self._engine_timer, self._skips = EngineTimer(), SkipMonitor()

    @property
    def steps(self) -> int:
        return self.config.train.steps

    async def run(self, state: State) -> State:
        """Train until the last step or the time limit. Saves a checkpoint at the end, and when cancelled (Ctrl-C)."""
        began = time.perf_counter()
        try:
            await self.begin(state)
            self.rollout_stage.admit(state.step, state.success_counts, state.drawn_with)
            if self.opponents is not None:
                await self.opponents.begin(state.step)
            if self._evaluation_due(state.step):
                # The run stopped before this evaluation finished or its checkpoint was saved.
                state = await self.finish_step(state, recorded_success(self.folder, state.step))
            while state.step < self.steps and not self._out_of_time(began):
                state = await self._step(state)
                if self.learner_thread is not None and self.learner_thread.cancelled:
                    raise asyncio.CancelledError
                state = await self.finish_step(state)
        except DivergedError:  # the weights are not worth saving
            raise
        except LearnerLost:  # the engine's weights may be lost too
            self._published = None
            raise
        except (asyncio.CancelledError, UserError):  # Ctrl-C, or a problem for the user to fix, such as a spent budget
            self.save(state)
            raise
        finally:
            await self.rollout_stage.close()
        self.save(state)
        return state

    async def begin(self, state: State) -> None:
        """Continue from this state: judges, progress, alarms and the engine's weights."""
        self._between_steps = False
        self.services.judges.restore(state.judges)
        recorded = self.folder.read_metrics()
        self.progress.begin(state.step, recorded=recorded)
        self.watcher.begin(recorded, state)
        await self._publish(state.step)
        self._publish_s = 0.0  # this also started the engine

    def save(self, state: State, *, best: bool = False) -> None:
        """Save a checkpoint, unless an update failed midway: a resumed run repeats the steps since the last one."""
        if self._between_steps:
            return
        state = replace(
            state, judges=self.services.judges.counts(), drawn_with=self.rollout_stage.drawn_with(state.step)
        )
        self.checkpoints.save(self.learner, state, best=best)
        if self.archer is not None:
            self.archer.prune(min(map(step_of, self.checkpoints.steps()), default=0))
        if self.opponents is not None and not best:
            self.opponents.drop_unneeded(state.step)

    def _out_of_time(self, began: float) -> bool:
        return self.max_seconds is not None and time.perf_counter() - began > self.max_seconds

    async def _step(self, state: State) -> State:
        """Run one training step. Cancelling it is safe: once the rollout ends, the step always completes."""
        timer = StepTimer()
        timer.add("publish", self._publish_s)
        if self.opponents is not None:
            await self.opponents.choose(state.step)
        rollout = await self.rollout_stage.run(state.step, self.progress.phase, state.success_counts)
        return await self.train_on(rollout, state, timer)

    async def train_on(self, rollout: RolloutResult, state: State, timer: StepTimer) -> State:
        """Train on the rollouts of a step and record the step. `timer` was started at the beginning of the step."""
        number, coefficients = state.step + 1, self._begin_step(state)
        self.drop_monitor.add(rollout.dropped)
        timer.lap("rollout")
        fresh = [] if self.archer is None else await self.archer.sample_fresh_utterances(number, rollout.groups)
        if self.release_cache:
            await self._sleep()
        self.progress.phase("update", 0, 1)
        learn = partial(self._learn, number, rollout, fresh, coefficients, timer)
        try:
            result = learn() if self.learner_thread is None else await self.learner_thread.run(learn)
        except DivergedError as error:
            self.folder.append_alarm(number, str(error))
            raise
        curriculum, success_counts = self.rollout_stage.tasks.curriculum, state.success_counts
        if curriculum is not None:
            success_counts = curriculum.update(success_counts, rollout.groups)
        if result.statistics is not None:
            trained = result.estimated if self.archer is None else None
            # ArCHer trains on other turns, so these have no advantages.
            rows = trajectory_rows(number, rollout.groups, trained, self.decode, result.statistics)
            self.folder.write_trajectories(number, rows, self.name_token)
            self.pictures.write(number, rows)
        timer.lap("record")
        row = self._record(
            number, rollout, result, {} if curriculum is None else curriculum.metrics(success_counts), timer
        )
        state = replace(
            state,
            step=number,
            skipped_steps=self.learner.skipped_steps,
            coefficients=result.coefficients.numbers(),
            success_counts=success_counts,
        )
        state = await self._handle_alarms(row, state)
        self._between_steps = False
        return state

    def _learn(
        self,
        number: int,
        rollout: RolloutResult,
        fresh: list[FreshUtterance],
        coefficients: AdaptiveCoefficients,
        timer: StepTimer,
    ) -> "_LearnerResult":
        """Do the learner's part of a step."""
        if self.archer is None:
            estimated = estimate(rollout.kept, self.learner, self.estimate_settings, coefficients, rollout.baselines)
        else:
            self._between_steps = True  # this trains its critic
            estimated = self.archer.estimate(number, rollout.groups, fresh, self.learner)
        if estimated is not None:
            check_finite_advantages(estimated, self.config.algo, number)
        timer.lap("estimate")
        diagnostics = self._diagnose(number, rollout, estimated)
        timer.lap("diagnose")
        metrics, statistics = {"empty_steps": 1.0}, TokenStatistics() if self._records_trajectories(number) else None
        if estimated is not None:
            settings = self.update_settings
            rate_scale = rollout.rate_scale * estimated.rate_scale
            self._between_steps = True
            metrics = update(self.learner, estimated, settings, number - 1, rate_scale, statistics, self._skips)
            kl = estimated.metrics.get("kl", metrics.get("kl"))
            coefficients = coefficients.after(kl, len(estimated.trajectories), estimated.critic_fit)
        timer.lap("update")
        return _LearnerResult(estimated, metrics | coefficients.numbers(), diagnostics, coefficients, statistics)

    def _records_trajectories(self, number: int) -> bool:
        every = self.config.record.trajectories
        return every > 0 and number % every == 0

    async def _publish(self, version: int) -> None:
        """Give the engine the learner's weights, unless it has that version."""
        if version != self._published:
            began = time.perf_counter()
            await self.engine.publish(version, self.learner.weights())
            self._published, self._publish_s = version, time.perf_counter() - began

    async def _sleep(self) -> None:
        """Release the engines' KV caches. No session is open between a rollout and the next one."""
        await self.engine.sleep()
        if self.opponents is not None and self.opponents.frozen is not None:
            await self.opponents.frozen.engine.sleep()

    def _begin_step(self, state: State) -> AdaptiveCoefficients:
        """Pass this step's settings to the learner."""
        coefficients = self.coefficients.restore(state.coefficients) if state.coefficients else self.coefficients
        kl_coef = coefficients.kl.value if self.estimate_settings.kl_in_reward is None else 0.0
        self.learner.begin_step(StepSettings(step=state.step, kl_coef=kl_coef, rate_scale=state.rate_scale))
        return coefficients

    def _diagnose(self, number: int, rollout: RolloutResult, estimated: Estimate | None) -> dict[str, float]:
        settings, found = self.config.diagnose, dict[str, float]()
        micro_tokens = self.update_settings.micro_tokens
        if is_due(settings.information_every, number):
            found |= mutual_information_metrics(
                rollout.groups, self.learner, settings.information_prompts, micro_tokens
            )
        if is_due(settings.gradients_every, number) and estimated is not None:
            found |= gradient_metrics(
                rollout.kept, estimated, self.learner, self.update_settings, settings.gradient_buckets
            )
        return found

    def _alarm(self, step: int, message: str) -> None:
        self.progress.note(f"alarm: {message}")
        self.folder.append_alarm(step, message)

    async def _handle_alarms(self, row: dict[str, Any], state: State) -> State:
        """Report alarms; with diagnose.rollback, go back to an earlier checkpoint, diagnose.max_rollbacks times."""
        settings = self.config.diagnose
        if not settings.alarms or not self.watcher.raises_alarm(row):
            return state
        if not settings.rollback or state.rollbacks >= settings.max_rollbacks:
            return state
        restored = roll_back(state, self.checkpoints, self.restore)
        if restored is None:
            self.progress.note("No checkpoint to roll back to yet; training continues.")
            return state
        self._published = None
        if self.archer is not None:
            self.archer.rewind(restored.step)
        await self.rollout_stage.close()  # the steps that have started are repeated with the earlier weights
        self.progress.note(
            f"Rolled back to step {restored.step}; the learning rate is now multiplied by {restored.rate_scale:g}."
        )
        self.watcher.begin([], restored)
        return restored

    def _record(
        self,
        number: int,
        rollout: RolloutResult,
        result: "_LearnerResult",
        curriculum: dict[str, float],
        timer: StepTimer,
    ) -> dict[str, Any]:
        metrics, estimated = rollout.metrics(), result.estimated
        if number == 1 and metrics.get("rollout/length_stops", 0.0) > LENGTH_STOP_WARNING:
            share = f"{100 * metrics['rollout/length_stops']:.0f} %"
            self.progress.note(f"{share} of turns were cut at rollout.max_new_tokens: raise it to let them finish")
        row = {
            "step": number,
            **metrics,
            **({"rollout/dropped_reason": first_line(rollout.dropped.reason)} if rollout.dropped.dropped else {}),
            **({} if self.learner_thread is None else staleness_metrics(rollout.kept, version=number - 1)),
            **{f"train/{name}": value for name, value in result.metrics.items()},
            **{f"train/{name}": value for name, value in (estimated.metrics if estimated else {}).items()},
            **self.services.metrics(),
            "train/skipped_steps": float(self.learner.skipped_steps),
            **result.diagnostics,
            **curriculum,
            **timer.metrics(rollout.num_tokens),
            **self._engine_timer.metrics(self.engine.stats()),
        }
        self.folder.append_metrics(row)
        self.progress.step(number - 1, row)
        return row

    async def finish_step(self, state: State, success: float | None = None) -> State:
        """Publish the weights; evaluate and save a checkpoint when they are due. No session is open here.

        `success`: validation success of this step, if already recorded before resuming.
        """
        config, number = self.config, state.step
        await self._publish(number)
        self.rollout_stage.admit(number, state.success_counts)
        if self.opponents is not None:
            await self.opponents.after(number)
        if self._evaluation_due(number):
            if success is None:
                success = (await self.evaluate("validation", self.validation_tasks, number)).success
            if config.checkpoint.keep_best and state.is_best(success):
                state = replace(state, best_success=success)
                self.save(state, best=True)
        if number % config.checkpoint.every == 0 and number != self.steps:
            self.save(state)
        return state

    def _evaluation_due(self, number: int) -> bool:
        """Return whether to validate now. The caller evaluates before and after training."""
        return 0 < number < self.steps and is_due(self.config.eval.every, number)

    async def evaluate(self, name: str, tasks: Sequence[Task], number: int) -> Evaluation:
        try:
            await self._publish(number)
            return await self.evaluator.evaluate(name, tasks, number)
        except LearnerLost:  # as in `run`
            self._published = None
            raise
