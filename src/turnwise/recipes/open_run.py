"""A run's settings made explicit, its folder, and where its training stands: begun, or gone on with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from turnwise.config.load import to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import Outage, UserError
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.load import LoadedModel
from turnwise.recipes.build import model_loader
from turnwise.recipes.configure import source_files
from turnwise.recipes.environment_mix import Worlds, rows_told
from turnwise.recipes.sources import model_of
from turnwise.recipes.validate import default_threads
from turnwise.record.provenance import describe_changes, write_provenance
from turnwise.record.run_folder import JudgeUsage, RunFolder
from turnwise.record.trackers import Trackers
from turnwise.report.html_report import REPORT_NAME as REPORT
from turnwise.report.html_report import write_report
from turnwise.report.terminal import sanitize_line
from turnwise.rewards.judge.registry import accounted
from turnwise.training.checkpoints import Checkpoints, State, restore, step_folders
from turnwise.training.learner import LocalLearner


@contextmanager
def opened(
    config: Config, worlds: Worlds, console: Console, *, method: str, command: str, resume: bool, finished: str
) -> Iterator[RunFolder]:
    """The folder of a run to be, or of one to go on with. `finished`: what to do instead of going on, of PATH."""
    for told in rows_told(worlds, config):
        console.print(sanitize_line(told), soft_wrap=True)
    path = run_path(config, worlds.name, method)
    folder = RunFolder.open(path, writing=True) if resume else RunFolder.create(path, to_toml(config))
    with folder:
        if resume and folder.summary_path.exists():
            if config.record.report and not (folder.path / REPORT).exists():
                write_report(folder.path)
            raise UserError(f"{path} is finished: {finished.replace('PATH', str(path))}")
        spending = JudgeUsage(folder.path)
        with failing_well(folder, resume, command), accounted(spending.read(), spending.add):
            if not resume:
                write_provenance(folder.path, source_files(config))
            elif (changed := describe_changes(folder.path)) is not None:
                console.print(sanitize_line(changed), soft_wrap=True)
            yield folder


def standing(
    config: Config,
    loaded: LoadedModel,
    learner: LocalLearner,
    folder: RunFolder,
    *,
    resume: bool,
    tell: Callable[[str], None],
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
        tell(f"{folder.path} has no checkpoint yet: it begins anew, with its own settings")
    if resume:
        folder.discard_from(state.step + 1)
    return checkpoints, state


@contextmanager
def failing_well(folder: RunFolder, resume: bool, command: str) -> Iterator[None]:
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


def settled(config: Config) -> Config:
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
def tracked(config: Config, folder: RunFolder, tell: Callable[[str], None], *, after: int | None) -> Iterator[None]:
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
