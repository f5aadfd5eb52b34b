"""A training run from its settings to its summary, shared by reinforcement learning and SFT."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console

from turnwise.config.load import to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import Outage, UserError
from turnwise.core.samples import Learner
from turnwise.core.task import Task
from turnwise.evaluation.episodes import Evaluation
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.load import LoadedModel
from turnwise.recipes.build import model_loader
from turnwise.recipes.configure import source_files
from turnwise.recipes.environment_mix import EnvironmentMix, describe_rows, task_source
from turnwise.recipes.sources import model_of
from turnwise.recipes.validate import default_threads
from turnwise.record.provenance import describe_changes, write_provenance
from turnwise.record.run_folder import JudgeUsage, RunFolder
from turnwise.record.trackers import Trackers
from turnwise.report.html_report import REPORT_NAME as REPORT
from turnwise.report.html_report import write_report
from turnwise.report.progress import Progress
from turnwise.report.terminal import sanitize_line
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.services import RewardServices
from turnwise.training.checkpoints import Checkpoints, State, restore, step_folders

Summary = dict[str, Any]


@contextmanager
def open_run(
    config: Config, worlds: EnvironmentMix, console: Console, *, method: str, command: str, resume: bool, finished: str
) -> Iterator[RunFolder]:
    """The folder of a run to be, or of one to go on with. `finished`: what to do instead of going on, of PATH."""
    for line in describe_rows(worlds, config):
        console.print(sanitize_line(line), soft_wrap=True)
    path = run_path(config, worlds.name, method)
    folder = RunFolder.open(path, writing=True) if resume else RunFolder.create(path, to_toml(config))
    with folder:
        if resume and folder.summary_path.exists():
            if config.record.report and not (folder.path / REPORT).exists():
                write_report(folder.path)
            raise UserError(f"{path} is finished: {finished.replace('PATH', str(path))}")
        with clean_up_failed_start(folder, resume, command):
            if not resume:
                write_provenance(folder.path, source_files(config))
            elif (changed := describe_changes(folder.path)) is not None:
                console.print(sanitize_line(changed), soft_wrap=True)
            yield folder


def restore_or_init(
    config: Config,
    loaded: LoadedModel,
    learner: Learner,
    folder: RunFolder,
    *,
    resume: bool,
    note: Callable[[str], None],
) -> tuple[Checkpoints, State]:
    """Where training stands: at the newest checkpoint, which the learner then holds, or at its beginning."""
    checkpoints = Checkpoints(
        folder.checkpoints,
        keep_last=config.checkpoint.keep_last,
        tokenizer=loaded.tokenizer,
        every=config.checkpoint.every,
    )
    state = State(step=0, best_success=None, skipped_steps=0)
    checkpoints.sweep()
    found = checkpoints.newest() if resume else None
    if found is not None:
        restore(found[0], learner, found[1], model_loader(config))
        state = found[1]
        checkpoints.drop_before(found[0])
    elif resume:
        note(f"{folder.path} has no checkpoint yet: it begins anew, with its own settings")
    if resume:
        folder.discard_from(state.step + 1)
    return checkpoints, state


@contextmanager
def clean_up_failed_start(folder: RunFolder, resume: bool, command: str) -> Iterator[None]:
    """A start that came to nothing leaves nothing, and what stopped says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if folder.summary_path.exists():  # the signal came when there was nothing left to stop
            raise KeyboardInterrupt(f"stopped; {folder.path} is finished") from None
        raise KeyboardInterrupt(f"stopped; go on with: turnwise {command} --resume {folder.path}") from None
    except Exception as error:
        if not resume:
            folder.remove_if_unused()
        kept = bool(step_folders(folder.checkpoints))
        if isinstance(error, Outage) and kept:
            how = f"what is done is kept, go on with: turnwise {command} --resume {folder.path}"
            raise Outage(f"{error}; {how}") from None
        if resume and isinstance(error, UserError) and not kept:
            raise UserError(
                f"{error}; {folder.path} has no checkpoint yet: if its settings were wrong, delete it and start anew"
            ) from error
        raise


def resolve(config: Config) -> Config:
    """The configuration with what depends on the machine, or may change, made explicit: it reproduces the run."""
    threads = config.system.threads or default_threads()
    system = config.system.model_copy(update={"threads": threads})
    name = model_of(config.model.name)
    if name not in model_names() and (place := Path(name).expanduser()).exists():
        name = str(place.absolute())  # so that the run can be resumed from any working directory
    model = config.model.model_copy(update={"name": name})
    return config.model_copy(update={"system": system, "model": model})


def run_path(config: Config, environment: str, method: str) -> Path:
    """Where the run goes: a folder of its own, right in record.folder."""
    name = config.record.name or free_name(config, environment, method)
    if not name.strip() or name in (".", "..") or set(name) & set("/\\\0\n"):
        raise UserError(f"record.name {name!r} is no name of a folder: leave / out, record.folder says where it goes")
    return Path(config.record.folder) / name


def free_name(config: Config, environment: str, method: str) -> str:
    model = Path(config.model.name).stem
    base = f"{environment}-{model}-{method}-seed{config.seed}"
    folder = Path(config.record.folder)
    names = [base, *(f"{base}-{number}" for number in range(2, 10_000))]
    return next(name for name in names if not (folder / name).exists())


@contextmanager
def track_metrics(
    config: Config, folder: RunFolder, tell: Callable[[str], None], *, after: int | None
) -> Iterator[None]:
    """All rows that are written from here on. `after`: the last step that a resumed run kept; None: it begins."""
    if not config.record.trackers:
        yield
        return
    settings = config.model_dump(mode="json")
    trackers = Trackers(
        config.record.trackers,
        config=settings,
        name=folder.path.name,
        folder=folder.path,
        warn=tell,
        resumed_after=after,
    )
    folder.on_metrics = trackers.log
    try:
        yield
    finally:
        folder.on_metrics = None
        trackers.close()


class TrainingLoop(Protocol):
    """What `Loop` and `SftLoop` have in common."""

    @property
    def steps(self) -> int: ...
    async def run(self, state: State) -> State: ...
    async def evaluate(self, name: str, tasks: Sequence[Task], number: int) -> Evaluation: ...


@dataclass
class TrainingRun(ABC):
    """Build a loop, evaluate before training, train, evaluate after it, and write the summary."""

    config: Config
    environments: EnvironmentMix
    folder: RunFolder
    console: Console

    planned_steps: int = field(init=False)
    """Steps that the progress display starts with; a loop may correct it."""
    services: RewardServices = field(init=False)
    """Judges of the run. They continue from what it has spent and log each further request in its folder."""

    def __post_init__(self) -> None:
        self.planned_steps = self.config.train.steps
        usage = JudgeUsage(self.folder.path)
        self.services = RewardServices(JudgeRegistry(spent=usage.read(), on_spend=usage.add))
        self.environments = self.environments.with_services(self.services)

    @abstractmethod
    def build(self, progress: Progress, limit_s: float | None, resume: bool) -> tuple[TrainingLoop, State]: ...

    @abstractmethod
    def summarise(self, rows: Sequence[dict[str, Any]]) -> Summary: ...

    def write_figures(self, rows: Sequence[dict[str, Any]]) -> None:  # noqa: B027  (a run may have none)
        """Draw what belongs into the run folder besides the report."""

    def train(self, resume: bool) -> Summary:
        config, minutes = self.config, self.config.train.max_minutes
        torch.set_num_threads(config.system.threads)
        self.tasks = task_source(config, self.environments)
        limit_s = None if minutes is None else 60 * minutes
        with Progress(self.planned_steps, self.console, title=self.folder.path.name, limit_s=limit_s) as progress:
            loop, state = self.build(progress, limit_s, resume)
            with track_metrics(config, self.folder, progress.note, after=state.step if resume else None):
                return asyncio.run(self.services.run(self._train(loop, state)))

    async def _train(self, loop: TrainingLoop, state: State) -> Summary:
        """Train between two evaluations. An evaluation that is recorded already is not repeated."""
        test_tasks = self.tasks.first_tasks(self.config.eval.split, self.config.eval.episodes)
        if not self._evaluated("before"):
            await loop.evaluate("before", test_tasks, state.step)
        state = await loop.run(state)
        if state.step < loop.steps:
            return {"finished": False, "steps": state.step}
        if not self._evaluated("after"):
            await loop.evaluate("after", test_tasks, state.step)
        rows = self.folder.read_metrics()
        summary = self.summarise(rows)
        self.write_figures(rows)
        if self.config.record.report:
            write_report(self.folder.path, summary=summary)
        self.folder.write_summary(summary)  # last: a run with a summary is finished
        return {"finished": True, **summary}

    def _evaluated(self, name: str) -> bool:
        return any(row.get("eval/name") == name for row in self.folder.read_metrics())


def summarise_success(rows: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]], seed: int) -> Summary:
    """Return the part of `summary.json` that every run has.

    `wall_s` is training with tiny's warm-up, without the evaluations before and after.
    """
    before, after = (next(row for row in rows if row.get("eval/name") == name) for name in ("before", "after"))
    validations = [row for row in rows if row.get("eval/name") == "validation"]
    return {
        "success_before": before["eval/success"],
        "success_after": after["eval/success"],
        "interval": [after["eval/success_low"], after["eval/success_high"]],
        "wall_s": rows[0]["time/warmup_s"] + sum(row["time/total_s"] for row in [*steps, *validations]),
        "steps": len(steps),
        "seed": seed,
    }
