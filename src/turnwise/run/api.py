"""The Python API: `tw.train`, `tw.sft`, `tw.evaluate`, `tw.load_run`, and the objects that they return.

Settings have the names of the command line, with `__` for the dot: `--algo.advantage gae` is `algo__advantage="gae"`.
Where a setting takes FILE.py:name, Python may pass the class or function itself.
"""

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from turnwise.config.load import build, read_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.task import Split
from turnwise.core.trajectory import Trajectory
from turnwise.envs.protocol_env import EnvFactory
from turnwise.envs.registry import spec_of
from turnwise.envs.settings import NO_ENV
from turnwise.envs.text_env import TextEnv
from turnwise.evaluation.episodes import Evaluation
from turnwise.files.run_folders import find_run_folder
from turnwise.record.rows import select
from turnwise.record.run_folder import RunFolder, is_finished
from turnwise.record.selection import Selection, branched_turns
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.report.terminal import make_console
from turnwise.rewards.functions import accepts_arguments
from turnwise.run.configure import configure
from turnwise.run.evaluation.arguments import RemoteModels
from turnwise.run.evaluation.evaluate import default_folder, evaluate_into_folder
from turnwise.run.evaluation.plan import plan_evaluation
from turnwise.run.evaluation.results import summarise_results
from turnwise.run.export import export
from turnwise.run.keywords import KEYWORDS, dotted_settings
from turnwise.run.notebook import outside_event_loop
from turnwise.run.replay import ReplayResult, replay
from turnwise.run.sft import sft as sft_run
from turnwise.run.train import train as train_run
from turnwise.run.training_run import OnStep
from turnwise.text.truncation import shorten
from turnwise.user_code.references import refuse_while_importing

if TYPE_CHECKING:
    import pandas

Environment = str | type[TextEnv] | EnvFactory
"""A recipe, a built-in environment, FILE.py:Class, FILE.toml, or a class or factory of environments."""
EvaluationName = Literal["before", "validation", "after"]


class Rows(list[dict[str, Any]]):
    """Rows of a table. `to_pandas()` makes a data frame; a notebook shows the last rows."""

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a data frame; needs pandas."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas needs pandas. Run `pip install pandas`.") from None
        return pandas.DataFrame(self)

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self[-10:] for name in row))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_short(row.get(name)))}</td>" for name in names) + "</tr>"
            for row in self[-10:]
        )
        return f"<p>{len(self)} rows, the last {len(self[-10:])}:</p><table><tr>{head}</tr>{body}</table>"


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return shorten(text, 40)


@dataclass(frozen=True)
class Run:
    """A run folder: its settings, metrics, recorded episodes and model."""

    path: Path
    """The run folder."""

    @property
    def config(self) -> Config:
        """Settings that reproduce the run."""
        return build(read_run(str(self.path)))

    @property
    def finished(self) -> bool:
        """False while the run is in progress, and if it was stopped and can be resumed."""
        return is_finished(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """Contents of summary.json: success before and after, steps, seconds. Empty until the run has ended.

        "finished" is False in it if the time limit `train.max_minutes` stopped the run.
        """
        file = self.path / "summary.json"
        summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return summary

    def metrics(self) -> Rows:
        """Return one row per training step and per evaluation."""
        return Rows(RunFolder.open(self.path).read_metrics())

    def trajectories(self, step: int | None = None, *, evaluation: EvaluationName | None = None) -> Rows:
        """Return the recorded episodes with their messages, tokens and rewards, of one step or of all.

        By default the episodes of training; with `evaluation`, those of the evaluation "before" or "after" training, or
        of the "validation" between steps.
        """
        return Rows(self.iter_trajectories(step, evaluation=evaluation))

    def iter_trajectories(
        self, step: int | None = None, *, evaluation: EvaluationName | None = None
    ) -> Iterator[dict[str, Any]]:
        """Read the recorded episodes one by one: a long run's do not fit in memory."""
        folder = RunFolder.open(self.path)
        entries = folder.read_index(evaluation)
        return (folder.read_trajectory(entry) for entry in entries if step in (None, entry["step"]))

    def evaluate(self, env: Environment | None = None, **options: Any) -> "EvaluationResult":
        """Evaluate the newest checkpoint on held-out tasks; options as in `tw.evaluate`."""
        return evaluate(self, env, **options)

    def replay(
        self,
        *,
        step: int | None = None,
        group: int | None = None,
        member: int | None = None,
        evaluation: EvaluationName | None = None,
        from_turn: int | None = None,
        all_turns: bool = False,
        samples: int = 64,
        model: str | None = None,
    ) -> ReplayResult:
        """Play recorded episodes again, compare them with their records, and sample branches from their turns.

        Args:
            step: Step of the episodes; `group` and `member` select among them. Default: all.
            evaluation: Episodes of the evaluation "before" or "after" training, or of the "validation" between steps.
            from_turn: Turn to sample branches from; 1 is the first.
            all_turns: Sample branches from every turn.
            samples: Branches per turn.
            model: What samples branches: a checkpoint of the run by its name, "start", another run, or a model.
        """
        selection = Selection(step=step, group=group, member=member, evaluation=evaluation)
        turns = branched_turns(from_turn, all_turns=all_turns)
        return outside_event_loop(lambda: replay(self.path, selection, turns=turns, samples=samples, model=model))

    def export(self, to: str | Path) -> Path:
        """Write the newest checkpoint as a plain Hugging Face folder, adapters merged; return the folder."""
        export(str(self.path), Path(to))
        return Path(to)

    def resume(self, *, max_minutes: float | None = None, on_step: OnStep | None = None, quiet: bool = False) -> "Run":
        """Continue an unfinished run from its last checkpoint; `max_minutes` replaces its time limit."""
        overrides = [] if max_minutes is None else [("train.max_minutes", max_minutes)]
        config = configure(resume=str(self.path), overrides=overrides)
        steps = select(RunFolder.open(self.path).read_records(), StepRecord)
        imitates = config.sft.demos is not None and all(record.source is not EpisodeSource.PLAYED for record in steps)
        command = sft_run if imitates else train_run
        return _run(command, config, resume=True, typed=(), on_step=on_step, quiet=quiet)

    def _repr_html_(self) -> str:
        curve = self.path / "curve.svg"
        picture = curve.read_text(encoding="utf-8") if curve.is_file() else ""
        return f"<p>{html.escape(repr(self))}</p>{picture}"


@dataclass(frozen=True)
class EvaluationResult:
    """An evaluation of one or several models on the same tasks."""

    path: Path
    """Folder with every episode, the summary and a report."""
    summary: dict[str, Any]
    """Contents of summary.json: metrics of each model, and paired comparisons with the first."""
    evaluations: Sequence[Evaluation] = field(repr=False)
    """In the order of the models."""

    @property
    def success(self) -> float:
        """Success rate of the first model."""
        return self.evaluations[0].success

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of `success`."""
        return self.evaluations[0].interval

    @property
    def trajectories(self) -> Sequence[Trajectory]:
        """Episodes of the first model."""
        return self.evaluations[0].trajectories


def train(
    env: Environment | None = None,
    *,
    model: str | Path | Run | None = None,
    steps: int | None = None,
    seed: int | None = None,
    max_minutes: float | None = None,
    name: str | None = None,
    like: str | None = None,
    config: Config | None = None,
    on_step: OnStep | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train an agent and return its run.

    Args:
        env: A recipe, an environment's name, FILE.py:Class, FILE.toml, a subclass of `TextEnv` or `ToolEnv`, or a class
            or function that makes a `tw.Env` from a `tw.Task` and the episode's random stream.
        model: "tiny", a Hugging Face name or folder, a GGUF file, or a run to continue from.
        steps: Training steps (`train.steps`).
        seed: Seed of everything random; equal seeds give equal runs.
        max_minutes: Time limit of the training (`train.max_minutes`); `run.resume()` continues a stopped run.
        name: Name of the run folder.
        like: Recipe whose settings, except its environment and token limits, are the defaults.
        config: All settings at once; excludes the others.
        on_step: Called with the metrics of each training step.
        quiet: Print nothing.
        settings: Any setting, such as algo__advantage="gae". Functions may be passed where FILE.py:name is allowed.
    """
    named: dict[str, Any] = {"train.steps": steps, "seed": seed, "record.name": name, "model.name": _model_name(model)}
    named |= {"train.max_minutes": max_minutes}
    config, typed = _configure("tw.train", env, like, config, named, settings)
    return _run(train_run, config, resume=False, typed=typed, on_step=on_step, quiet=quiet)


def sft(
    env: Environment | None = None,
    *,
    demos: str | Path | Run | None = None,
    data: str | Path | None = None,
    model: str | Path | Run | None = None,
    count: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    max_minutes: float | None = None,
    name: str | None = None,
    like: str | None = None,
    config: Config | None = None,
    on_step: OnStep | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Fine-tune on demonstrations and return the run.

    Args:
        env: As in `tw.train`. Not needed with `data`: then the loss of held-out conversations is measured instead of
            success.
        demos: "solver" (the environment's own, the default), or a run whose successes are imitated.
        data: File of conversations instead of `demos` (JSONL, JSON, CSV, Parquet): messages, prompt and completion, or
            ShareGPT.
        model: As in `tw.train`.
        count: Maximum number of demonstrations (`sft.count`).
        epochs: Passes over the demonstrations (`sft.epochs`).
        seed: Seed of everything random.
        max_minutes: As in `tw.train`.
        name: Name of the run folder.
        like: As in `tw.train`.
        config: All settings at once; excludes the others.
        on_step: Called with the metrics of each step.
        quiet: Print nothing.
        settings: Any setting, such as sft__learning_rate=1e-4.
    """
    named: dict[str, Any] = {"sft.count": count, "sft.epochs": epochs, "seed": seed, "record.name": name}
    named |= {"model.name": _model_name(model), "train.max_minutes": max_minutes}
    if data is not None and demos is not None:
        raise UserError("tw.sft: data and demos both name the demonstrations: remove one of them.")
    if config is None:
        source = demos if data is None else data
        if not isinstance(source, str | Path | Run | None):
            setting = "demos" if data is None else "data"
            raise UserError(
                f"tw.sft: {setting} is a {type(source).__name__}, not the path of a file or a run. Write the "
                "conversations to a .jsonl file, one per line, and give its path."
            )
        named |= {"sft.demos": "solver" if source is None else str(source.path if isinstance(source, Run) else source)}
        env = NO_ENV if env is None and data is not None else env
    config, typed = _configure("tw.sft", env, like, config, named, settings)
    typed = [key for key in typed if key != "sft.demos"]
    return _run(sft_run, config, resume=False, typed=typed, on_step=on_step, quiet=quiet)


def evaluate(
    model: str | Path | Run | Sequence[str | Path | Run],
    env: Environment | None = None,
    *,
    episodes: int | None = None,
    seeds: str | None = None,
    split: Split | None = None,
    tries: int | None = None,
    temperature: float | None = None,
    endpoint: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> EvaluationResult:
    """Evaluate runs, models or an endpoint's models on held-out tasks.

    Args:
        model: A run, a model as in `model.name`, or several of them: all are compared with the first.
        env: Environment; by default that of the first run.
        episodes: Number of tasks (`eval.episodes`).
        seeds: Instead of `episodes`: indices of tasks in the split, such as "0-9,20".
        split: "test" (default), "validation" or "train".
        tries: Episodes per task, for pass@k.
        temperature: Sampling temperature; 0 is greedy (`eval.temperature`).
        endpoint: URL of an OpenAI-compatible server that serves the models.
        out: Folder for the results; an interrupted evaluation into the same folder continues.
        quiet: Print nothing.
        settings: Any setting, such as env__params={"size": 5}.
    """
    refuse_while_importing("tw.evaluate")
    several = [model] if isinstance(model, str | Path | Run) else model
    models = tuple(str(_model_name(one)) for one in several)
    named = {"eval.episodes": episodes, "eval.temperature": temperature, "eval.split": split}
    given = named | dotted_settings(settings, KEYWORDS["tw.evaluate"])
    overrides = [(key, value) for key, value in given.items() if value is not None]
    environment = [] if env is None else [_reference(env)]
    remote = None if endpoint is None else RemoteModels(url=endpoint, models=models)
    sources = [*([] if endpoint is not None else models), *environment]

    def play() -> EvaluationResult:
        plan = plan_evaluation(sources, remote=remote, overrides=overrides, seeds=seeds, tries=tries)
        path = Path(out) if out is not None else default_folder(plan)
        results = evaluate_into_folder(plan, path, console=_console(quiet))
        return EvaluationResult(path=path, summary=summarise_results(results), evaluations=results.evaluations)

    return outside_event_loop(play)


def load_run(run: str | Path) -> Run:
    """Return the run in this folder, or of this name in runs/."""
    return Run(find_run_folder(str(run)))


def _configure(
    call: str,
    env: Environment | None,
    like: str | None,
    config: Config | None,
    named: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> tuple[Config, list[str]]:
    """Return the configuration and the keys that the caller set."""
    refuse_while_importing(call)
    given = dict(named) | dotted_settings(settings, KEYWORDS[call])
    overrides = [(key, value) for key, value in given.items() if value is not None]
    if config is None and env is None:
        or_data = ", data=FILE" if call == "tw.sft" else ""
        raise UserError(f'{call} needs an environment: env="frozen_lake", a class{or_data}, or config=tw.Config(...)')
    if config is None:
        assert env is not None
        is_sft = call == "tw.sft"
        built = configure(_reference(env), like=like, overrides=overrides, full_context=is_sft)
        return built, [key for key, _ in overrides]
    if env is not None or like is not None or overrides:
        raise UserError(f"{call}: config holds all settings: remove the others, or remove config.")
    if not isinstance(config, Config):
        raise UserError(f'{call}: config is a {type(config).__name__}. Give a tw.Config(train={{"steps": 50}}).')
    return config, []


def _run(
    command: Callable[..., dict[str, Any]],
    config: Config,
    *,
    resume: bool,
    typed: Sequence[str],
    on_step: OnStep | None,
    quiet: bool,
) -> Run:
    if on_step is not None and not callable(on_step):
        raise UserError(f"on_step is {on_step!r}. Give a function, which is called with the metrics of each step.")
    if on_step is not None and not accepts_arguments(on_step, 1):
        raise UserError("on_step must take one argument, the metrics of a step. Write def on_step(metrics).")

    def work() -> Run:
        summary = command(config, resume=resume, console=_console(quiet), override_keys=typed, on_step=on_step)
        return Run(Path(summary["path"]))

    return outside_event_loop(work)


def _console(quiet: bool) -> Console:
    return Console(quiet=True) if quiet else make_console()


def _model_name(model: str | Path | Run | None) -> str | None:
    if not isinstance(model, str | Path | Run | None):
        raise UserError(
            f"Model is a value of type {type(model).__name__}, not a name, a folder or a run. Save it first: "
            "model.save_pretrained(FOLDER), then model=FOLDER."
        )
    return None if model is None else str(model.path if isinstance(model, Run) else model)


def _reference(env: Environment) -> str:
    return env if isinstance(env, str) else spec_of(env).id
