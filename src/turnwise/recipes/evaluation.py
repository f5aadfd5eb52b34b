"""`turnwise eval`: a run's last checkpoint or a named one, or any model, on held-out tasks."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from turnwise.config.load import Overrides, build, read_run
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.evaluate.run import Evaluation, evaluate
from turnwise.recipes.configure import settings_for
from turnwise.recipes.run import settled
from turnwise.recipes.sources import find_checkpoint, find_source
from turnwise.recipes.wiring import build_players, load_policy
from turnwise.recipes.worlds import task_source, worlds_of
from turnwise.record.console import make_console
from turnwise.record.progress import Progress
from turnwise.record.table import evaluation_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What was evaluated, on what, and how it did."""

    model: str
    environment: str
    split: str
    result: Evaluation


def evaluate_source(
    source: str, environment: str | None = None, *, overrides: Overrides = (), console: Console | None = None
) -> Evaluated:
    """`source`: a run, RUN/checkpoints/NAME or a model; `environment`: left out, a run's own."""
    console = console or make_console()
    config = settled(_config(source, environment, overrides))
    torch.set_num_threads(config.system.threads)
    worlds = worlds_of(config)
    tasks = task_source(config, worlds)
    with Progress(1, console, title=f"evaluating {source}") as progress:
        loaded, _ = load_policy(config, worlds, lambda done, total: progress.phase("warm-up", done, total))
        players = build_players(config, worlds, loaded)
        held_out = tasks.held_out(config.eval.split, config.eval.episodes)
        found = asyncio.run(
            evaluate(players.evaluator, held_out, lambda done, total: progress.phase("episodes", done, total))
        )
    console.print(evaluation_table(source, worlds.name, config.eval.split, found.metrics()))
    return Evaluated(model=source, environment=worlds.name, split=config.eval.split, result=found)


def _config(source: str, environment: str | None, overrides: Overrides) -> Config:
    found = _source(source)
    if found is None:
        if environment is None:
            raise UserError(f'no run "{source}"; if it is a model, say on what: turnwise eval {source} ENV')
        return build(settings_for(environment), [("model.name", source), *overrides])
    run, name = found
    settings = read_run(str(run))
    if environment is not None:
        settings["env"] = settings_for(environment)["env"]
    return build(settings, [("model.name", str(find_checkpoint(run, name))), *overrides])


def _source(source: str) -> tuple[Path, str | None] | None:
    try:
        return find_source(source)
    except UserError:
        return None
