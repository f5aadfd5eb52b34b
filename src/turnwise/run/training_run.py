"""A training run from its settings to its summary, shared by reinforcement learning and SFT."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console

from turnwise.config.load import to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import LearnerLost, Outage, UserError
from turnwise.core.task import Split, Task
from turnwise.models.loading.catalogue import model_names
from turnwise.record.judge_usage import JudgeUsage
from turnwise.record.provenance import describe_changes, write_provenance
from turnwise.record.resume_command import spell_resume
from turnwise.record.rows import AFTER, BEFORE, EvaluationRecord, Record, is_evaluation, select, training_s
from turnwise.record.run_folder import RunFolder
from turnwise.record.steps import StepRecord
from turnwise.record.trackers import Trackers
from turnwise.report.html_report import REPORT_NAME as REPORT
from turnwise.report.html_report import write_report
from turnwise.report.progress import Progress
from turnwise.report.tables import run_table
from turnwise.report.terminal import print_command, sanitize_line
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.services import RewardServices
from turnwise.run.cost import price_per_s, recorded_s, recorded_wh
from turnwise.run.environment_mix import EnvironmentMix, build_task_source, describe_rows
from turnwise.run.find_model import resolve_model_name
from turnwise.run.load_policy import TimeLimitReached
from turnwise.run.resources import default_threads
from turnwise.run.run_name import check_run_name, run_path
from turnwise.run.setting_paths import source_files
from turnwise.run.thread_tasks import cancellable
from turnwise.training.checkpoints import State, step_folders, step_of

Summary = dict[str, Any]
OnStep = Callable[[Mapping[str, Any]], object]
"""Called with the metrics of each training step."""


@contextmanager
def explain_failure(folder: RunFolder, resume: bool) -> Iterator[None]:
    """Add to an error how to resume the run. Remove the folder of a new run that failed before its first step."""
    try:
        yield
    except KeyboardInterrupt:
        if folder.finished:  # the signal came after the last step
            raise KeyboardInterrupt(f"stopped; {folder.path} is finished") from None
        raise KeyboardInterrupt(f"stopped; resume with: {spell_resume(folder.path)}") from None
    except Exception as error:
        if not resume:
            folder.remove_if_unused()
        has_checkpoint = bool(step_folders(folder.checkpoints))
        reason = str(error).rstrip(".")
        if isinstance(error, Outage) and has_checkpoint:
            how = spell_resume(folder.path)
            saved = "Finished steps are saved" if _has_finished_steps(folder) else "No step has finished yet"
            raise Outage(f"{reason}. {saved}; resume with: {how}") from None
        if resume and isinstance(error, UserError) and not has_checkpoint:
            raise UserError(
                f"{reason}. {folder.path} has no checkpoint yet: if its settings were wrong, delete it and start again."
            ) from error
        raise


def _has_finished_steps(folder: RunFolder) -> bool:
    return any(step_of(step_folder) for step_folder in step_folders(folder.checkpoints))


def resolve(config: Config) -> Config:
    """Return the configuration with explicit threads and model path, so that the saved file reproduces the run."""
    threads = config.system.threads or default_threads()
    system = config.system.model_copy(update={"threads": threads})
    name = resolve_model_name(config.model.name)
    if name not in model_names() and (path := Path(name).expanduser()).exists():
        name = str(path.absolute())  # so that the run can be resumed from any working directory
    model = config.model.model_copy(update={"name": name})
    return config.model_copy(update={"system": system, "model": model})


@contextmanager
def track_metrics(
    config: Config, folder: RunFolder, warn: Callable[[str], None], *, resumed_after: int | None
) -> Iterator[None]:
    """Send new rows of metrics to record.trackers. `resumed_after` is the last step of a resumed run, else None."""
    if not config.record.trackers:
        yield
        return
    settings = config.model_dump(mode="json")
    trackers = Trackers(
        config.record.trackers,
        config=settings,
        name=folder.path.name,
        folder=folder.path,
        warn=warn,
        resumed_after=resumed_after,
    )
    folder.listeners.append(trackers.log)
    try:
        yield
    finally:
        folder.listeners.remove(trackers.log)
        trackers.close()


class TrainingLoop(Protocol):
    """Protocol of `Loop` and `SftLoop`."""

    @property
    def steps(self) -> int: ...
    async def run(self, state: State) -> State: ...


@dataclass
class TrainingRun(ABC):
    """Open the folder of a run, build a loop, evaluate before training, train, evaluate after it, and report."""

    config: Config
    environments: EnvironmentMix
    console: Console
    on_step: OnStep | None = None

    folder: RunFolder = field(init=False)
    """Opened by `open_folder`."""
    planned_steps: int | None = field(init=False)
    """Number of steps that the progress display starts with; a loop may correct it. None if it is not known."""
    services: RewardServices = field(init=False)
    """Judges of the run. They continue from what it has spent and log each further request in its folder."""
    resources: ExitStack = field(init=False)
    """Closed after training, such as the connection to a cluster."""

    def __post_init__(self) -> None:
        self.planned_steps = self.config.train.steps

    @property
    @abstractmethod
    def method(self) -> str:
        """Part of the folder's name that says how the run trains."""

    @abstractmethod
    def advise_finished(self, path: Path) -> str:
        """Return the advice in the error for a finished run, given its folder."""

    @abstractmethod
    def next_command(self, path: Path) -> str:
        """Return the command to use after the run."""

    def prepare(self) -> None:  # noqa: B027  (a run may need nothing)
        """Do what a new run does before it has a folder."""

    def run(self, resume: bool) -> Summary:
        """Run from the settings to the summary, which it returns."""
        if not resume:
            check_run_name(self.config.record)
            self.prepare()
        with self.open_folder(resume):
            summary = self.train(resume)
        self._report_end(summary)
        return summary | {"path": str(self.folder.path)}

    @contextmanager
    def open_folder(self, resume: bool) -> Iterator[None]:
        """Create the folder of a new run, or open that of a run to resume."""
        config, environments = self.config, self.environments
        for line in describe_rows(environments, config):
            self.console.print(sanitize_line(line), soft_wrap=True)
        path = run_path(config, environments.name, self.method)
        self.folder = RunFolder.open(path, writing=True) if resume else RunFolder.create(path, to_toml(config))
        with self.folder:
            if resume and self.folder.finished:
                if not (path / REPORT).exists():
                    write_report(path)
                raise UserError(f"{path} is finished. {self.advise_finished(path)}")
            with explain_failure(self.folder, resume):
                if not resume:
                    write_provenance(path, source_files(config))
                elif (changes := describe_changes(path)) is not None:
                    self.console.print(sanitize_line(changes), soft_wrap=True)
                usage = JudgeUsage(path)
                self.services = RewardServices(JudgeRegistry(spent=usage.read(), on_spend=usage.add))
                self.environments = environments.with_services(self.services)
                yield

    @abstractmethod
    def build(self, progress: Progress, resume: bool) -> tuple[TrainingLoop, State]: ...

    @abstractmethod
    async def evaluate(self, name: str, step: int) -> None:
        """Evaluate the policy after `step` steps and record it under this name."""

    @abstractmethod
    def summarise(self, records: Sequence[Record]) -> Summary: ...

    def write_figures(self, records: Sequence[Record]) -> None:  # noqa: B027  (a run may have none)
        """Write figures into the run folder."""

    def train(self, resume: bool) -> Summary:
        try:
            with self.open(resume) as (loop, state):
                return asyncio.run(self.services.run(self._train(loop, state)))
        except asyncio.CancelledError:  # by `cancel_task_of`
            raise KeyboardInterrupt from None
        except TimeLimitReached as stop:
            self.console.print(sanitize_line(f"note: {stop}"), soft_wrap=True)
            return {"finished": False, "steps": 0}

    @contextmanager
    def open(self, resume: bool) -> Iterator[tuple[TrainingLoop, State]]:
        """Build the loop, and close what it uses afterwards."""
        config, minutes = self.config, self.config.train.max_minutes
        torch.set_num_threads(config.system.threads)
        self.tasks = build_task_source(config, self.environments)
        limit_s = None if minutes is None else 60 * minutes
        if self.on_step is not None:
            self.folder.listeners.append(self._report_step)
        price, title = price_per_s(config), self.folder.path.name
        with (
            Progress(self.planned_steps, self.console, title=title, limit_s=limit_s, price_per_s=price) as progress,
            ExitStack() as self.resources,
        ):
            progress.earlier_s = recorded_s(self.folder.read_records()) if resume and price is not None else 0.0
            loop, state = self.build(progress, resume)
            with track_metrics(config, self.folder, progress.note, resumed_after=state.step if resume else None):
                yield loop, state

    def _report_step(self, record: Record) -> None:
        if self.on_step is not None and isinstance(record, StepRecord):
            self.on_step(record.to_row())

    async def _train(self, loop: TrainingLoop, state: State) -> Summary:
        """Train between two evaluations. An evaluation that is already recorded is not repeated."""
        with cancellable():
            async with self.open_gateway():
                return await self._evaluate_and_train(loop, state)

    def open_gateway(self) -> AbstractAsyncContextManager[object]:
        """Open what episodes need besides the engine."""
        return nullcontext()

    async def _evaluate_and_train(self, loop: TrainingLoop, state: State) -> Summary:
        evaluate_before, evaluate_after = (partial(self._evaluate_once, name) for name in (BEFORE, AFTER))
        if state.step < loop.steps:
            self.folder.discard_results()
        state = await self._run_stage(evaluate_before, state)
        state = await self._run_stage(loop.run, state)
        if not state.step:
            return {"finished": False, "steps": 0}
        state = await self._run_stage(evaluate_after, state)
        records = self.folder.read_records()
        summary = self.summarise(records)
        if (price := price_per_s(self.config)) is not None:
            summary["cost"] = price * recorded_s(records)
        if (energy := recorded_wh(records)) is not None:
            summary["energy_wh"] = energy
        if state.step < loop.steps:
            summary["finished"] = False
        self.write_figures(records)
        write_report(self.folder.path, summary=summary)
        self.folder.write_summary(summary)  # last: a run with a summary has ended
        return {"finished": True, **summary}

    async def _evaluate_once(self, name: str, state: State) -> State:
        """Evaluate, unless that is recorded, or "before" was lost and the weights are trained."""
        if not self._evaluated(name) and not (name == BEFORE and state.step):
            await self.evaluate(name, state.step)
        return state

    async def _run_stage(self, stage: Callable[[State], Awaitable[State]], state: State) -> State:
        """Run a stage; repeat it from the last checkpoint if a process of the learner dies."""
        while True:
            try:
                return await stage(state)
            except LearnerLost as loss:
                lost = loss
            state = await asyncio.to_thread(self.recover, lost)  # lost engine replicas are replaced meanwhile

    def recover(self, loss: LearnerLost) -> State:
        """Restore the learner from the last checkpoint. A learner of this process is never lost."""
        raise loss

    def _report_end(self, summary: Summary) -> None:
        """Print the results and the next command; for a stopped run, the reason and how to resume it."""
        path = self.folder.path
        if summary["steps"]:
            self.console.print(run_table(summary, path))
        if summary["finished"]:
            print_command(self.console, "next:", self.next_command(path))
        else:
            reason = f"stopped by train.max_minutes {self.config.train.max_minutes} after {summary['steps']} steps"
            print_command(self.console, f"{reason}; resume with:", spell_resume(path))
        if summary["steps"] and summary.get("idle_steps") == summary["steps"]:
            self.console.print("No step trained anything, so the model is unchanged.")

    def _evaluated(self, name: str) -> bool:
        return any(is_evaluation(record, name) for record in self.folder.read_records())

    def eval_tasks(self, split: Split) -> list[Task]:
        """Return the tasks of evaluations; none without an environment."""
        return self.tasks.first_tasks(split, self.config.eval.episodes) if self.environments.entries else []


def summarise_success(records: Sequence[Record], seed: int) -> Summary:
    """Return the part of `summary.json` that every run has.

    `wall_s` is training with tiny's warm-up, without the evaluations before and after.
    """
    evaluations = select(records, EvaluationRecord)
    by_name = {record.name: record for record in evaluations}
    before, after = by_name.get(BEFORE), by_name[AFTER]
    reasons = [record.dropped_reason for record in records if isinstance(record, StepRecord | EvaluationRecord)]
    reasons = [reason for reason in reasons if reason is not None]
    return {
        "success_before": None if before is None else before.success,  # None: the row is lost
        "success_after": after.success,
        "interval": list(after.interval),
        "wall_s": sum(map(training_s, records)),
        "steps": max((record.step for record in select(records, StepRecord)), default=0),
        "seed": seed,
        "eval_dropped": int(sum(record.metrics.get("dropped", 0) for record in evaluations)),
        "dropped_reason": reasons[-1] if reasons else None,
    }
