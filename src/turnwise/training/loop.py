"""The synchronous loop: roll out, score, estimate, update, record; then the next step."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.algos.alarms import AlarmSettings
from turnwise.core.errors import DivergedError, UserError
from turnwise.core.task import Task
from turnwise.core.token_name import TokenName
from turnwise.engine.native.engine import NativeEngine
from turnwise.evaluation.episodes import Evaluation
from turnwise.record.metrics import rollout_metrics
from turnwise.record.run_folder import RunFolder
from turnwise.report.pictures.trajectory_images import TrajectoryImages
from turnwise.report.progress import Progress
from turnwise.rewards.judge.registry import counted, judge_metrics, take_up
from turnwise.rollout.collect import Collector
from turnwise.rollout.failures import Losses
from turnwise.training.checkpoints import Checkpoints, State
from turnwise.training.diagnostics import DiagnoseSettings, gradients, information
from turnwise.training.estimate import Dials, Estimate, EstimateSettings, estimate
from turnwise.training.learner import LocalLearner
from turnwise.training.rollback import Watcher, roll_back
from turnwise.training.rollout_stage import Gathered, Gatherer
from turnwise.training.selfplay import Rivals
from turnwise.training.step_record import Clock, Seen, measure, trajectory_rows
from turnwise.training.update import UpdateSettings, update

MANY_CUT = 0.2
"""The share of turns without an end from which a limit stands in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    steps: int
    eval_every: int
    eval_tasks: Sequence[Task]
    """Of the validation split."""
    checkpoint_every: int
    keep_best: bool
    record_every: int
    max_seconds: float | None
    alarms: bool
    max_rollbacks: int
    """0: alarms are told and nothing else."""
    releases_cache: bool = False
    """Engines give the memory of their caches back after each rollout: the update needs it."""


class Loop:
    """Trains from `state.step` on. Nothing but the learner, its checkpoints and the run folder carries over a step."""

    def __init__(
        self,
        *,
        settings: LoopSettings,
        estimate_settings: EstimateSettings,
        update_settings: UpdateSettings,
        diagnose_settings: DiagnoseSettings,
        gatherer: Gatherer,
        evaluator: Collector,
        engine: NativeEngine,
        learner: LocalLearner,
        dials: Dials,
        checkpoints: Checkpoints,
        restore: Callable[[str, State], None],
        folder: RunFolder,
        progress: Progress,
        decode: Callable[[Sequence[int]], str],
        name_token: Callable[[int], TokenName],
        pictures: TrajectoryImages,
        rivals: Rivals | None = None,
    ) -> None:
        self.settings = settings
        self.estimate_settings, self.update_settings = estimate_settings, update_settings
        self.diagnose_settings = diagnose_settings
        self.gatherer, self.evaluator = gatherer, evaluator
        self.engine, self.learner, self.dials = engine, learner, dials
        self.checkpoints, self.restore = checkpoints, restore
        self.folder, self.progress = folder, progress
        bounds = AlarmSettings(max_grad_norm=learner.optimizer.settings.max_grad_norm)
        self.watcher, self.losses = Watcher(tell=self._alarm, settings=bounds), Losses()
        self.decode, self.name_token, self.pictures, self.rivals = decode, name_token, pictures, rivals
        self._captured_s = 0.0
        """Of the engine's captures, what has been recorded."""

    async def run(self, state: State) -> State:
        """Returns where training stands: done, or out of time. Cancelled (Ctrl-C), it leaves a checkpoint first."""
        began = time.perf_counter()
        take_up(state.judges)
        self.progress.begin(state.step)
        self.watcher.begin(self.folder.read_metrics(), state)
        try:
            if self.rivals is not None:
                await self.rivals.begin(state.step)
            if self._evaluation_due(state.step) and not self._evaluated(state.step):  # stopped in the middle of it
                state = await self._between(state)
            while state.step < self.settings.steps and not self._out_of_time(began):
                state = await self._step(state)
                state = await self._between(state)
        except DivergedError:  # what would be saved is worth nothing
            raise
        except (asyncio.CancelledError, UserError):  # Ctrl-C, or something to mend, such as a budget that is spent
            self._save(state)
            raise
        self._save(state)
        return state

    def _save(self, state: State, *, best: bool = False) -> None:
        self.checkpoints.save(self.learner, replace(state, judges=counted()), best=best)
        if self.rivals is not None and not best:
            self.rivals.drop_unneeded(state.step)

    def _out_of_time(self, began: float) -> bool:
        limit = self.settings.max_seconds
        return limit is not None and time.perf_counter() - began > limit

    async def _step(self, state: State) -> State:
        """One training step. After the rollout nothing awaits, so a cancelled step changed nothing."""
        number, clock = state.step + 1, Clock()
        dials = self._set(state)
        gathered = await self.gatherer.gather(state.step, self.progress.phase, state.measured)
        self.losses.see(gathered.lost)
        clock.lap("rollout")
        self._rest()
        estimated = estimate(gathered.kept, self.learner, self.estimate_settings, dials, gathered.baselines)
        clock.lap("score")
        diagnosed = self._diagnose(number, gathered, estimated)
        clock.lap("diagnose")
        self.progress.phase("update", 0, 1)
        learnt, seen = {"empty_steps": 1.0}, Seen() if self._recorded(number) else None
        if estimated is not None:
            learnt = update(self.learner, estimated, self.update_settings, state.step, gathered.rate_scale, seen)
            kl = estimated.metrics.get("kl", learnt.get("kl"))
            dials = dials.after(kl, len(estimated.trajectories), estimated.foresight)
        clock.lap("update")
        curriculum, measured = self.gatherer.tasks.curriculum, state.measured
        if curriculum is not None:
            measured = curriculum.after(measured, gathered.groups)
            diagnosed |= curriculum.metrics(measured)
        if seen is not None:
            rows = trajectory_rows(number, gathered.groups, estimated, self.decode, seen)
            self.folder.write_trajectories(number, rows, self.name_token)
            self.pictures.write(number, rows)
        clock.lap("record")
        row = self._record(
            number, gathered, estimated, learnt | {f"dial_{k}": v for k, v in dials.numbers().items()}, diagnosed, clock
        )
        state = replace(
            state,
            step=number,
            skipped_steps=self.learner.skipped_steps,
            dials=dials.numbers(),
            measured=measured,
        )
        return self._watched(row, state)

    def _recorded(self, number: int) -> bool:
        every = self.settings.record_every
        return every > 0 and number % every == 0

    def _rest(self) -> None:
        """No session lives after a rollout."""
        if self.settings.releases_cache:
            self.engine.sleep()
            if self.rivals is not None and self.rivals.frozen is not None:
                self.rivals.frozen.engine.sleep()

    def _set(self, state: State) -> Dials:
        """Puts what this step depends on where it is read."""
        dials = self.dials.restored(state.dials) if state.dials else self.dials
        self.learner.training_step, self.learner.rate_scale = state.step, state.rate_scale
        if self.estimate_settings.kl_in_reward is None:
            self.learner.kl_coef = dials.kl.value
        self.engine.policy_version = state.step
        if self.rivals is not None:
            self.rivals.sit_down(state.step)
        return dials

    def _diagnose(self, number: int, gathered: Gathered, estimated: Estimate | None) -> dict[str, float]:
        settings, found = self.diagnose_settings, dict[str, float]()
        micro_tokens = self.update_settings.micro_tokens
        if settings.information_due(number):
            found |= information(gathered.groups, self.learner, settings.information_prompts, micro_tokens)
        if settings.gradients_due(number) and estimated is not None:
            found |= gradients(gathered.kept, estimated, self.learner, self.update_settings, settings.gradient_buckets)
        return found

    def _alarm(self, step: int, message: str) -> None:
        self.progress.note(f"alarm: {message}")
        self.folder.append_alarm(step, message)

    def _watched(self, row: dict[str, Any], state: State) -> State:
        """Alarms are told; with `max_rollbacks` they are answered, as often as that."""
        if not self.settings.alarms or not self.watcher.see(row) or state.rollbacks >= self.settings.max_rollbacks:
            return state
        back = roll_back(state, self.learner, self.checkpoints, self.restore)
        if back is None:
            self.progress.note("no checkpoint to go back to yet: training goes on")
            return state
        self.progress.note(f"went back to an earlier checkpoint, learning rate times {back.rate_scale:g} from here on")
        self.watcher.begin([], back)
        return back

    def _record(
        self,
        number: int,
        gathered: Gathered,
        estimated: Estimate | None,
        learnt: dict[str, float],
        diagnosed: dict[str, float],
        clock: Clock,
    ) -> dict[str, Any]:
        rolled, captured_s = rollout_metrics(gathered.groups), self.engine.capture_s
        if number == 1 and rolled.get("rollout/length_stops", 0.0) > MANY_CUT:
            share = f"{100 * rolled['rollout/length_stops']:.0f} %"
            self.progress.note(f"{share} of turns were cut at rollout.max_new_tokens: raise it to let them finish")
        row = {
            "step": number,
            **rolled,
            **gathered.metrics(),
            **{f"rollout/{name}": float(count) for name, count in gathered.counts.items()},
            **{f"train/{name}": value for name, value in learnt.items()},
            **{f"train/{name}": value for name, value in (estimated.metrics if estimated else {}).items()},
            **judge_metrics(),
            "train/skipped_steps": float(self.learner.skipped_steps),
            **diagnosed,
            **clock.metrics(rolled["rollout/sampled_tokens"] + rolled["rollout/context_tokens"]),
            "time/capture_s": captured_s - self._captured_s,
        }
        self._captured_s = captured_s
        self.folder.append_metrics(row)
        self.progress.step(number - 1, row)
        return row

    async def _between(self, state: State) -> State:
        """At a step boundary no session lives: evaluate and checkpoint when it is time."""
        settings, number = self.settings, state.step
        if self.rivals is not None:
            await self.rivals.after(number)
        if self._evaluation_due(number):
            found = await self.evaluate("validation", settings.eval_tasks, number)
            if settings.keep_best and (state.best_success is None or found.success > state.best_success):
                state = replace(state, best_success=found.success)
                self._save(state, best=True)
        if number % settings.checkpoint_every == 0 and number < settings.steps:
            self._save(state)
        return state

    def _evaluation_due(self, number: int) -> bool:
        """Before and after training are the caller's to evaluate."""
        every = self.settings.eval_every
        return every > 0 and 0 < number < self.settings.steps and number % every == 0

    def _evaluated(self, number: int) -> bool:
        return any("eval/name" in row and row["step"] == number for row in self.folder.read_metrics())

    async def evaluate(self, name: str, tasks: Sequence[Task], number: int) -> Evaluation:
        return await measure(self.evaluator, tasks, self.folder, self.progress, name=name, step=number)
