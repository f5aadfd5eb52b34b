"""The synchronous loop: roll out, score, estimate, update, record; then the next step."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Trajectory
from turnwise.engine.native.engine import NativeEngine
from turnwise.evaluate.run import Evaluation, evaluate
from turnwise.record.metrics import rollout_metrics
from turnwise.record.progress import Progress
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import trajectory_row
from turnwise.rewards.scoring import score_group
from turnwise.rollout.collect import Collected, Collector
from turnwise.rollout.tasks import TaskSource
from turnwise.train.checkpoints import Checkpoints, State
from turnwise.train.learner import LocalLearner
from turnwise.train.update import Estimate, UpdateSettings, estimate, update


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    steps: int
    groups: int
    group_size: int
    format_penalty: float
    eval_every: int
    eval_tasks: Sequence[Task]
    """Of the validation split."""
    checkpoint_every: int
    keep_best: bool
    record_every: int
    max_seconds: float | None


class Loop:
    """Trains from `state.step` on. Nothing but the learner, its checkpoints and the run folder carries over a step."""

    def __init__(
        self,
        *,
        settings: LoopSettings,
        update_settings: UpdateSettings,
        tasks: TaskSource,
        collector: Collector,
        evaluator: Collector,
        engine: NativeEngine,
        learner: LocalLearner,
        checkpoints: Checkpoints,
        folder: RunFolder,
        progress: Progress,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self.settings, self.update_settings = settings, update_settings
        self.tasks, self.collector, self.evaluator = tasks, collector, evaluator
        self.engine, self.learner = engine, learner
        self.checkpoints, self.folder, self.progress = checkpoints, folder, progress
        self.decode = decode

    async def run(self, state: State) -> State:
        """Returns where training stands: done, or out of time. Cancelled (Ctrl-C), it leaves a checkpoint first."""
        began = time.perf_counter()
        self.progress.begin(state.step)
        try:
            if self._evaluation_due(state.step) and not self._evaluated(state.step):  # stopped in the middle of it
                state = await self._between(state)
            while state.step < self.settings.steps and not self._out_of_time(began):
                state = await self._step(state)
                state = await self._between(state)
        except asyncio.CancelledError:
            self.checkpoints.save(self.learner, state)
            raise
        self.checkpoints.save(self.learner, state)
        return state

    def _out_of_time(self, began: float) -> bool:
        limit = self.settings.max_seconds
        return limit is not None and time.perf_counter() - began > limit

    async def _step(self, state: State) -> State:
        """One training step. After the rollout nothing awaits, so a cancelled step changed nothing."""
        number, clock = state.step + 1, Clock()
        self.learner.training_step = state.step
        self.engine.policy_version = state.step
        collected = await self._roll_out(state.step)
        clock.lap("rollout")
        groups = [score_group(group, self.settings.format_penalty) for group in collected.groups]
        estimated = estimate(groups, self.learner, self.update_settings)
        clock.lap("score")
        self.progress.phase("update", 0, 1)
        learnt = (
            update(self.learner, estimated, self.update_settings, state.step) if estimated else {"empty_steps": 1.0}
        )
        clock.lap("update")
        self._record(number, groups, collected, estimated, learnt, clock)
        return replace(state, step=number, skipped_steps=self.learner.skipped_steps)

    async def _roll_out(self, step: int) -> Collected:
        return await self.collector.collect(
            self.tasks.training(step, self.settings.groups),
            group_size=self.settings.group_size,
            round=step,
            progress=lambda done, total: self.progress.phase("rollout", done, total),
        )

    def _record(
        self,
        number: int,
        groups: list[Group],
        collected: Collected,
        estimated: Estimate | None,
        learnt: dict[str, float],
        clock: "Clock",
    ) -> None:
        if self.settings.record_every and number % self.settings.record_every == 0:
            self.folder.write_trajectories(number, trajectory_rows(number, groups, estimated, self.decode))
        clock.lap("record")
        rolled = rollout_metrics(groups)
        row = {
            "step": number,
            **rolled,
            **{f"rollout/{name}": float(count) for name, count in collected.counts.items()},
            **{f"train/{name}": value for name, value in learnt.items()},
            **{f"train/{name}": value for name, value in (estimated.metrics if estimated else {}).items()},
            "train/skipped_steps": float(self.learner.skipped_steps),
            **clock.metrics(rolled["rollout/sampled_tokens"] + rolled["rollout/context_tokens"]),
        }
        self.folder.append_metrics(row)
        self.progress.step(number - 1, row)

    async def _between(self, state: State) -> State:
        """At a step boundary no session lives: evaluate and checkpoint when it is time."""
        settings, number = self.settings, state.step
        if self._evaluation_due(number):
            found = await self.evaluate("validation", settings.eval_tasks, number)
            if settings.keep_best and (state.best_success is None or found.success > state.best_success):
                state = replace(state, best_success=found.success)
                self.checkpoints.save(self.learner, state, best=True)
        if number % settings.checkpoint_every == 0 and number < settings.steps:
            self.checkpoints.save(self.learner, state)
        return state

    def _evaluation_due(self, number: int) -> bool:
        """Before and after training are the caller's to evaluate."""
        every = self.settings.eval_every
        return every > 0 and 0 < number < self.settings.steps and number % every == 0

    def _evaluated(self, number: int) -> bool:
        return any("eval/name" in row and row["step"] == number for row in self.folder.read_metrics())

    async def evaluate(self, name: str, tasks: Sequence[Task], number: int) -> Evaluation:
        clock = Clock()
        found = await evaluate(self.evaluator, tasks, lambda done, total: self.progress.phase(name, done, total))
        clock.lap("eval")
        self.folder.append_metrics({"step": number, "eval/name": name, **found.metrics(), **clock.metrics()})
        return found


class Clock:
    """Times of the phases of a step."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = self._last = now()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = self._now()
        self._laps[name] = now - self._last
        self._last = now

    def metrics(self, tokens: float | None = None) -> dict[str, float]:
        total = self._now() - self._began
        out = {f"time/{name}_s": seconds for name, seconds in self._laps.items()} | {"time/total_s": total}
        return out if tokens is None else out | {"time/tokens_per_s": tokens / total}


def trajectory_rows(
    number: int, groups: Sequence[Group], estimated: Estimate | None, decode: Callable[[Sequence[int]], str]
) -> list[dict[str, object]]:
    """All trajectories of a step, with the advantages of those that were trained on."""
    advantages: dict[int, list[float]] = {}
    if estimated is not None:
        for sample, values in zip(estimated.samples, estimated.advantages, strict=True):
            owner = id(estimated.trajectories[sample.trajectory])
            advantages.setdefault(owner, []).extend(values[sample.mask].tolist())
    return [
        trajectory_row(
            trajectory,
            step=number,
            group=group_number,
            advantages=_by_turn(trajectory, advantages.get(id(trajectory))),
            decode=decode,
        )
        for group_number, group in enumerate(groups)
        for trajectory in group.trajectories
    ]


def _by_turn(trajectory: Trajectory, values: list[float] | None) -> list[list[float]] | None:
    if values is None:
        return None
    left = iter(values)
    return [list(islice(left, len(turn.action_ids))) for turn in trajectory.turns]
