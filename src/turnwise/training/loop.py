"""The training loop: episodes, estimate, update, record, publish. Everything else is a part (`training/step.py`).

With `PlayedAhead` the episodes of later steps run while the learner trains on this one's.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from turnwise.concurrency.spans import SpanLog
from turnwise.core.errors import DivergedError, UserError
from turnwise.core.learner import Learner, StepSettings
from turnwise.core.protocols import EngineControl
from turnwise.record.steps import IdleReason, StepRecord
from turnwise.report.formatting import first_line
from turnwise.rewards.services import RewardServices
from turnwise.training.checkpoints import State, capture_state
from turnwise.training.skipped_steps import SkipMonitor
from turnwise.training.step import (
    Estimator,
    Metrics,
    Part,
    Rollout,
    Source,
    TokenStatistics,
    TrainedStep,
    check_finite_advantages,
)
from turnwise.training.step_record import StepTimer
from turnwise.training.update import UpdateSettings, update

_T = TypeVar("_T")

LANE, WAITING = "training loop", "wait for rollouts"
"""Lane of the steps' phases among the spans, and the phase in which the loop waits."""


class LearnerRunner(Protocol):
    """Runs the learner's part of a step: `ThisThread` or `LearnerThread`."""

    @property
    def cancelled(self) -> bool:
        """True if training was cancelled while the learner worked, which still completed the step."""
        ...

    async def run(self, call: Callable[[], _T]) -> _T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    steps: int
    seconds: float | None = None
    """No step starts after this time; None: no limit."""


class StepLoop(ABC):
    """Take steps from a state on. What carries over between them is in the learner, in the parts and in their files."""

    def __init__(self, *, learner: Learner, parts: Sequence[Part], limits: LoopLimits) -> None:
        self.learner, self.parts, self.limits = learner, parts, limits
        self.step = 0
        """Number of completed steps."""
        self._initial = {part.name: part.state() for part in parts if part.name}
        self._between_steps = False
        """Whether the learner's weights are those of no finished step: an update is running, or has failed."""

    @property
    def steps(self) -> int:
        return self.limits.steps

    @abstractmethod
    async def take_step(self) -> None:
        """Take one step and record it."""

    async def publish(self, version: int) -> None:  # noqa: B027  (SFT samples only in evaluations)
        """Give the weights to an engine, if there is one to sample with them."""

    async def run(self, state: State) -> State:
        """Train until the last step or the time limit, and return the state then.

        The parts save at the end, and when training is cancelled (Ctrl-C).
        """
        try:
            await self._take_steps(state)
            self.stop()
        finally:
            for part in self.parts:
                await part.close()
        return capture_state(self.step, self.learner, self.parts)

    async def _take_steps(self, state: State) -> None:
        began = time.perf_counter()
        try:
            await self.begin(state)
            while self.step < self.steps and not self._out_of_time(began):
                await self.take_step()
                await self.finish_step()
        except DivergedError:  # the weights are not worth saving
            raise
        except (asyncio.CancelledError, UserError):  # Ctrl-C, or a problem for the user to fix, such as a spent budget
            self.stop()
            raise

    async def begin(self, state: State) -> None:
        """Continue from this state."""
        self.step, self._between_steps = state.step, False
        for part in self.parts:
            if part.name:
                part.load_state(state.parts.get(part.name, self._initial[part.name]))
        await self.publish(self.step)
        for part in self.parts:
            await part.begin(self.step)

    async def finish_step(self) -> None:
        """Publish the weights of a recorded step, then let the parts evaluate and save."""
        await self.publish(self.step)
        for part in self.parts:
            await part.finish(self.step)

    def stop(self) -> None:
        """Let the parts save, unless an update failed halfway: a resumed run repeats the steps since the last save."""
        if self._between_steps:
            return
        for part in self.parts:
            part.stop(self.step)

    def _out_of_time(self, began: float) -> bool:
        return self.limits.seconds is not None and time.perf_counter() - began > self.limits.seconds


class Loop(StepLoop):
    """Reinforcement learning."""

    def __init__(
        self,
        *,
        source: Source,
        estimator: Estimator[Any],
        learner: Learner,
        engine: EngineControl,
        parts: Sequence[Part],
        update_settings: UpdateSettings,
        limits: LoopLimits,
        runner: LearnerRunner,
        spans: SpanLog | None = None,
    ) -> None:
        """`spans`: gets the phases of the steps."""
        super().__init__(learner=learner, parts=parts, limits=limits)
        self.source, self.estimator, self.engine = source, estimator, engine
        self.update_settings, self.runner, self.spans = update_settings, runner, spans
        self._published: int | None = None
        """Version of the weights that the engine generates with."""
        self._publish_s = 0.0
        """Seconds that publishing the last step's weights took."""
        self._skips = SkipMonitor()

    async def begin(self, state: State) -> None:
        await super().begin(state)
        self._publish_s = 0.0  # publishing also started the engine

    async def take_step(self) -> None:
        timer = self.start_timer()
        for part in self.parts:
            await part.before(self.step)
        rollout = await self.source.groups(self.step)
        await self.train_on(rollout, timer)
        if self.runner.cancelled:
            raise asyncio.CancelledError

    def start_timer(self) -> StepTimer:
        """Return the timer of a step that begins now."""
        timer = StepTimer(on_lap=self._add_span)
        timer.add("publish", self._publish_s)
        return timer

    def _add_span(self, phase: str, seconds: float) -> None:
        if self.spans is not None:
            self.spans.add(LANE, WAITING if phase == "rollout" else phase, seconds)

    async def finish_step(self) -> None:
        await self.publish(self.step)
        began = time.perf_counter()
        for part in self.parts:
            await part.finish(self.step)
        self._add_span("evaluate and save", time.perf_counter() - began)

    async def train_on(self, rollout: Rollout, timer: StepTimer) -> None:
        """Train on the episodes of a step and record it. Once the learner begins, the step always completes."""
        timer.lap("rollout")
        self.learner.begin_step(self._settings())
        sampled = await self.estimator.sample(rollout)
        for part in self.parts:
            await part.sampled()
        try:
            trained, metrics = await self.runner.run(partial(self._learn, rollout, sampled, timer))
        except DivergedError as error:
            for part in self.parts:
                part.diverged(rollout.number, error)
            raise
        self._record(trained, metrics, timer)
        self.step, self._between_steps = rollout.number, False

    def _settings(self) -> StepSettings:
        settings = StepSettings(step=self.step)
        for part in self.parts:
            settings = part.adjust(settings)
        return settings

    def _learn(self, rollout: Rollout, sampled: Any, timer: StepTimer) -> tuple[TrainedStep, Metrics]:
        """Do the learner's part of a step; also return the metrics of parts that inspected it."""
        number, metrics = rollout.number, dict[str, float]()
        self._between_steps = self.estimator.trains
        estimated = self.estimator.estimate(rollout, sampled, self.learner)
        estimate = None if isinstance(estimated, IdleReason) else estimated
        if estimate is not None:
            check_finite_advantages(estimate, self.estimator.setting, number)
        timer.lap("estimate")
        for part in self.parts:
            metrics |= part.inspect(rollout, estimate)
        timer.lap("diagnose")
        tokens = TokenStatistics() if any(part.reads_tokens(number) for part in self.parts) else None
        update_metrics, idle = {"empty_steps": 1.0}, estimated if isinstance(estimated, IdleReason) else None
        if estimate is not None:
            rate_scale = rollout.rate_scale * estimate.rate_scale
            self._between_steps = True
            updated = update(self.learner, estimate, self.update_settings, self.step, rate_scale, tokens, self._skips)
            update_metrics, idle = updated.metrics, updated.idle
        timer.lap("update")
        trained = TrainedStep(
            number=number, rollout=rollout, estimate=estimate, metrics=update_metrics, idle=idle, tokens=tokens
        )
        return trained, metrics

    def _record(self, trained: TrainedStep, inspected: Metrics, timer: StepTimer) -> None:
        """Record an updated step. Nothing here waits, so that a step is recorded completely or not at all."""
        rollout, estimate = trained.rollout, trained.estimate
        training = dict(trained.metrics) | (estimate.metrics if estimate is not None else {})
        metrics = rollout.metrics() | {f"train/{name}": value for name, value in training.items()} | dict(inspected)
        for part in self.parts:
            metrics |= part.record(trained)
        timer.lap("record")
        metrics["train/skipped_steps"] = float(self.learner.skipped_steps)
        record = StepRecord.of(
            trained.number,
            rollout.source,
            metrics | timer.metrics(rollout.num_tokens),
            idle=trained.idle,
            dropped_reason=first_line(rollout.dropped.reason) if rollout.dropped.dropped else None,
        )
        for part in self.parts:
            part.after(record)

    async def publish(self, version: int) -> None:
        """Give the engine the learner's weights, unless it has that version."""
        if version != self._published:
            began = time.perf_counter()
            await self.engine.publish(version, self.learner.weights())
            self._published, self._publish_s = version, time.perf_counter() - began
            self._add_span("publish", self._publish_s)

    def forget_published(self) -> None:
        """Publish the weights again next time: the engine may have lost them with the learner."""
        self._published = None


class ReleaseCaches(Part):
    """Frees the engines' KV caches after each rollout, for updates that need the memory."""

    def __init__(self, engines: Sequence[EngineControl]) -> None:
        self._engines = engines

    async def sampled(self) -> None:
        for engine in self._engines:
            await engine.sleep()


class JudgeBudgets(Part):
    """Usage of the judges, whose budgets are for the whole run, however often it is resumed."""

    name = "judges"

    def __init__(self, services: RewardServices) -> None:
        self._services = services

    def state(self) -> dict[str, dict[str, float]]:
        return {judge: dict(counts) for judge, counts in self._services.judges.counts().items()}

    def load_state(self, state: dict[str, dict[str, float]]) -> None:
        self._services.judges.restore(state)

    def record(self, trained: TrainedStep) -> Metrics:
        return self._services.metrics()
