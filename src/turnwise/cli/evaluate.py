"""turnwise eval"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from turnwise.cli.options import WHAT, Settings, command_app, settings
from turnwise.core.errors import UserError

ENDPOINT = Group("Endpoint", sort_key=3)
SECTIONS = ("env", "model", "rollout", "context", "eval", "system")

app = command_app("eval", "SOURCE... [ENV] [OPTIONS] [--SECTION.KEY VALUE]...")


@app.default
def evaluate(
    *sources: Annotated[str, Parameter(name="SOURCE... [ENV]")],
    resume: Annotated[Path | None, Parameter(metavar="FOLDER", group=WHAT)] = None,
    episodes: Annotated[int | None, Parameter(metavar="N")] = None,
    seeds: Annotated[str | None, Parameter(metavar="3,7,10-20|FILE")] = None,
    split: Literal["train", "validation", "test"] | None = None,
    tries: Annotated[int | None, Parameter(metavar="K")] = None,
    temperature: Annotated[float | None, Parameter(metavar="T")] = None,
    out: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    endpoint: Annotated[str | None, Parameter(metavar="URL", group=ENDPOINT)] = None,
    model: Annotated[tuple[str, ...], Parameter(metavar="NAME", group=ENDPOINT)] = (),
    api_key_env: Annotated[str | None, Parameter(metavar="VARIABLE", group=ENDPOINT)] = None,
    concurrency: Annotated[int | None, Parameter(metavar="N", group=ENDPOINT)] = None,
    timeout: Annotated[float | None, Parameter(metavar="SECONDS", group=ENDPOINT)] = None,
    retries: Annotated[int | None, Parameter(metavar="N", group=ENDPOINT)] = None,
    overrides: Settings = (),
) -> None:
    """Success rates of runs, models and endpoints.

    Parameters
    ----------
    sources
        Runs (folders, or names in runs/), RUN/checkpoints/NAME, or models as in model.name; all are compared with
        the first. Then an environment, FILE.toml or FILE.py:Class; left out, the first run's own.
    resume
        Instead: go on with the evaluation in this folder.
    episodes
        How many tasks (eval.episodes).
    seeds
        Instead: these tasks of the split, counted from 0, or a file that lists them.
    split
        Which tasks (eval.split).
    tries
        Episodes of each task; gives pass@k up to this k.
    temperature
        Of sampling; 0 is greedy (eval.temperature).
    out
        Where to save; the same command into the same folder goes on where it was.
    endpoint
        Instead of a SOURCE, or besides: an OpenAI-compatible server, such as http://localhost:8000/v1.
    model
        A model of the endpoint; give it again for another.
    api_key_env
        The environment variable that holds the key; left out, OPENAI_API_KEY.
    concurrency
        Requests at the same time; left out, 16.
    timeout
        Of one request; left out, 120.
    retries
        How often a request is sent again when it fails; left out, 6.
    """
    asked = {"episodes": episodes, "seeds": seeds, "split": split, "tries": tries, "temperature": temperature}
    wire = {"api-key-env": api_key_env, "concurrency": concurrency, "timeout": timeout, "retries": retries}
    if resume is not None:
        others = {**asked, "out": out, "endpoint": endpoint, "model": model or None}
        _refuse_besides_resume([*sources, *_typed(others), *(f"--{key}" for key, _ in overrides)])
    _refuse_halves(asked, endpoint, model, () if resume is not None else _typed(wire))
    typed = settings(overrides, SECTIONS, eval__episodes=episodes, eval__temperature=temperature, eval__split=split)
    from turnwise.recipes.eval_contestants import Remote, read_endpoint_options
    from turnwise.recipes.evaluation import ask, evaluate_into, go_on

    line = read_endpoint_options(key_variable=api_key_env, concurrency=concurrency, timeout_s=timeout, retries=retries)
    if resume is not None:
        go_on(resume, wire=line)
        return
    remote = Remote(url=endpoint, models=model) if endpoint is not None else None
    asked_for = ask(sources, remote=remote, overrides=typed, seeds=seeds, tries=tries)
    evaluate_into(asked_for, out, wire=line)


def _refuse_besides_resume(given: Sequence[str]) -> None:
    if given:
        raise UserError(f"--resume goes on with what the evaluation began with: leave out {given[0]}")


def _refuse_halves(
    asked: Mapping[str, object], endpoint: str | None, models: Sequence[str], wire: Sequence[str]
) -> None:
    """Options that need each other, and options that say the same."""
    if (endpoint is None) != (not models):
        raise UserError("--endpoint URL and --model NAME belong together: give both, or a model to run here as SOURCE")
    if endpoint is None and wire:
        raise UserError(f"{wire[0]} has no effect without --endpoint: leave it out")
    if asked["episodes"] is not None and asked["seeds"] is not None:
        raise UserError("--episodes and --seeds both say which tasks: leave one out")


def _typed(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}" for name, value in options.items() if value is not None]
