"""`turnwise eval`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from turnwise.cli.parsing import INPUT, Settings, command_app, merge_settings
from turnwise.core.errors import UserError

ENDPOINT = Group("Endpoint", sort_key=3)
SECTIONS = ("env", "model", "rollout", "context", "eval", "system")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskArguments:
    episodes: Annotated[int | None, Parameter(metavar="N")] = None
    """Number of tasks (eval.episodes)."""
    seeds: Annotated[str | None, Parameter(metavar="3,7,10-20|FILE")] = None
    """Indices of the tasks in the split, counted from 0, or a file that lists them; replaces --episodes."""
    split: Literal["train", "validation", "test"] | None = None
    """Task split (eval.split)."""
    tries: Annotated[int | None, Parameter(metavar="K")] = None
    """Episodes per task; reports pass@k up to this k."""
    temperature: Annotated[float | None, Parameter(metavar="T")] = None
    """Sampling temperature; 0 is greedy (eval.temperature)."""


@Parameter(name="*", group=ENDPOINT)
@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointArguments:
    endpoint: Annotated[str | None, Parameter(metavar="URL")] = None
    """OpenAI-compatible server such as http://localhost:8000/v1, in place of SOURCE or in addition."""
    model: Annotated[tuple[str, ...], Parameter(metavar="NAME")] = ()
    """Model of the endpoint; repeat the option for several."""
    api_key_env: Annotated[str | None, Parameter(metavar="VARIABLE")] = None
    """Environment variable with the API key. Default: OPENAI_API_KEY."""
    concurrency: Annotated[int | None, Parameter(metavar="N")] = None
    """Maximum concurrent requests. Default: 16."""
    timeout: Annotated[float | None, Parameter(metavar="SECONDS")] = None
    """Time limit per request. Default: 120."""
    retries: Annotated[int | None, Parameter(metavar="N")] = None
    """Maximum retries of a failed request. Default: 6."""


NO_TASK_ARGUMENTS, NO_ENDPOINT_ARGUMENTS = TaskArguments(), EndpointArguments()

eval_app = command_app("eval", "SOURCE... [ENV] [OPTIONS] [--SECTION.KEY VALUE]...")


@eval_app.default
def evaluate(
    *sources: Annotated[str, Parameter(name="SOURCE... [ENV]")],
    resume: Annotated[Path | None, Parameter(metavar="FOLDER", group=INPUT)] = None,
    tasks: TaskArguments = NO_TASK_ARGUMENTS,
    out: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    endpoint: EndpointArguments = NO_ENDPOINT_ARGUMENTS,
    overrides: Settings = (),
) -> None:
    """Measure success rates.

    Parameters
    ----------
    sources
        Runs (folders, or names in runs/), RUN/checkpoints/NAME, or models as in model.name. All are compared with the
        first. Then an environment, FILE.toml or FILE.py:Class. Default: the environment of the first run.
    resume
        Folder of an evaluation to continue, in place of SOURCE.
    out
        Folder for the results. The same command with the same folder continues where it stopped.
    """
    if resume is not None:
        check_resume_alone(sources, tasks, out, endpoint, overrides)
    else:
        check_combinations(tasks, endpoint)
    settings = merge_settings(
        overrides,
        SECTIONS,
        eval__episodes=tasks.episodes,
        eval__temperature=tasks.temperature,
        eval__split=tasks.split,
    )
    from turnwise.files.run_folders import refuse_foreign
    from turnwise.run.evaluation.arguments import RemoteModels, check_arguments

    remote = RemoteModels(url=endpoint.endpoint, models=endpoint.model) if endpoint.endpoint is not None else None
    if resume is None:
        check_arguments(sources, remote, settings, seeds=tasks.seeds, tries=tasks.tries)  # before torch is imported
    if out is not None:
        refuse_foreign(out)
    from turnwise.run.evaluation.evaluate import evaluate_into_folder, resume_evaluation
    from turnwise.run.evaluation.models import read_endpoint_options
    from turnwise.run.evaluation.plan import plan_evaluation

    endpoint_options = read_endpoint_options(
        key_variable=endpoint.api_key_env,
        concurrency=endpoint.concurrency,
        timeout_s=endpoint.timeout,
        retries=endpoint.retries,
    )
    if resume is not None:
        resume_evaluation(resume, endpoint_options=endpoint_options)
        return
    plan = plan_evaluation(sources, remote=remote, overrides=settings, seeds=tasks.seeds, tries=tasks.tries)
    evaluate_into_folder(plan, out, endpoint_options=endpoint_options)


def check_resume_alone(
    sources: Sequence[str],
    tasks: TaskArguments,
    out: Path | None,
    endpoint: EndpointArguments,
    overrides: Sequence[tuple[str, str]],
) -> None:
    """Reject everything beside --resume except the endpoint's connection options, which are not part of the results."""
    others = {**asdict(tasks), "out": out, "endpoint": endpoint.endpoint, "model": endpoint.model or None}
    typed = [*sources, *typed_options(others), *(f"--{key}" for key, _ in overrides)]
    if typed:
        raise UserError(f"--resume continues an evaluation with the settings it started with: remove {typed[0]}")


def check_combinations(tasks: TaskArguments, endpoint: EndpointArguments) -> None:
    """Reject options that lack the option they need, and options that contradict each other."""
    if (endpoint.endpoint is None) != (not endpoint.model):
        raise UserError("--endpoint URL and --model NAME must be given together; a local model is given as SOURCE.")
    connection = {name: value for name, value in asdict(endpoint).items() if name not in ("endpoint", "model")}
    if endpoint.endpoint is None and (typed := typed_options(connection)):
        raise UserError(f"{typed[0]} has no effect without --endpoint: remove it.")
    if tasks.episodes is not None and tasks.seeds is not None:
        raise UserError("--episodes and --seeds both select the tasks: remove one of them.")


def typed_options(values: Mapping[str, object]) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not None]
