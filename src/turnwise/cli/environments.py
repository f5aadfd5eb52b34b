"""`turnwise envs`, `turnwise play` and `turnwise recipes`."""

import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from turnwise.cli.output import print_line, print_table
from turnwise.cli.parsing import EnvironmentArgument, Settings, command_app, merge_settings
from turnwise.core.errors import UserError
from turnwise.envs.catalogue import CATALOGUE, install_command
from turnwise.envs.starter.write import write_starter
from turnwise.text.command_line import spell_command

envs_app = command_app("envs", "[NAME | new NAME | check ENV [--env.params.NAME VALUE]... | export ENV --to LIBRARY]")
recipes_app = command_app("recipes", "[NAME]")
play_app = command_app("play", "ENV [--seed N] [--env.params.NAME VALUE]...")

CHECK_LIMITS = 20
"""Seconds that a whole check may take, in limits of a call."""
MAX_PREVIEW_COLUMNS = 80
"""Width of images in the terminal."""


@envs_app.default
def envs(name: str | None = None, new_name: Annotated[str | None, Parameter(show=False)] = None, /) -> None:
    """List the environments, describe one, or start a new one.

    Parameters
    ----------
    name
        Built-in environment or FILE.py:Class to describe. `new NAME` writes a template and its test to this folder.
    """
    if name == "new":
        if new_name is None:
            raise UserError(f"Name the new class: {spell_command('envs', 'new', 'GuessNumber')}")
        file, test = write_starter(new_name, Path())
        print_line(f"wrote {file}, with a guessing game as an example to replace, and {test}")
        print_line(f"next: {spell_command('play', f'{file}:{new_name}')}")
        print_line(f"      {spell_command('train', f'{file}:{new_name}')}")
        return
    if new_name is not None:
        raise UserError(f'Unexpected argument "{new_name}": give one environment.')
    if name is not None:
        print_parameters(name)
        return
    rows = [(listed, summarize(entry.summary, install_command(entry.needs))) for listed, entry in CATALOGUE.items()]
    print_table(("environment", "description"), rows)
    print_line(f"\n{spell_command('envs', 'NAME')} lists the parameters; {spell_command('play', 'NAME')} starts a game")


@envs_app.command(name="check")
def check(
    environment: Annotated[str, Parameter(name="ENV")],
    /,
    *,
    tasks: Annotated[int, Parameter(validator=validators.Number(gte=2, lte=1000))] = 6,
    step_seconds: Annotated[float, Parameter(validator=validators.Number(gt=0))] = 30.0,
    overrides: Settings = (),
) -> None:
    """Check whether an environment is sound; the exit status is not 0 if a check fails.

    Parameters
    ----------
    environment
        Recipe, environment (`turnwise envs` lists them), FILE.toml with your own settings, FILE.py:Class, or the URL of
        an OpenEnv server.
    tasks
        Training tasks that each agent plays. Default: 6.
    step_seconds
        Longest time of a call of the environment. Default: 30.
    """
    from turnwise.run.configure import configure
    from turnwise.run.environment_mix import build_environment_mix
    from turnwise.testing.soundness import CHECKS, Verdict
    from turnwise.testing.supervised import check_environment

    if environment.startswith(("http://", "https://")):
        environment = f"openenv:{environment}"
    config = configure(environment, overrides=merge_settings(overrides, ("env",)))
    ((spec, params),) = build_environment_mix(config.env, config.agent).with_params[:1]
    print_line(f"{spec.name}: {tasks} tasks")
    width, failed = max(map(len, CHECKS)), 0
    for finding in check_environment(
        spec.id, params, num_tasks=tasks, step_s=step_seconds, check_s=CHECK_LIMITS * step_seconds
    ):
        failed += finding.verdict is Verdict.FAILED
        print_line(f"{finding.verdict:7} {finding.check:{width}}  {finding.detail}")
    if failed:
        raise UserError(f"{failed} of {len(CHECKS)} checks failed. Fix the environment before you train on it.")


@envs_app.command(name="export")
def export(
    environment: EnvironmentArgument,
    /,
    *,
    to: Literal["openenv", "verifiers", "gymnasium"],
    out: Annotated[Path | None, Parameter(metavar="DIR")] = None,
    overrides: Settings = (),
) -> None:
    """Write a package with which another library runs an environment.

    Parameters
    ----------
    to
        openenv (a server), verifiers (a taskset for vf-eval) or gymnasium (an id for gymnasium.make).
    out
        Folder to write. Default: turnwise_NAME.
    """
    from turnwise.run.configure import configure
    from turnwise.run.env_export import export_environment
    from turnwise.run.environment_mix import build_environment_mix

    config = configure(environment, overrides=merge_settings(overrides, ("env",)))
    ((spec, params),) = build_environment_mix(config.env, config.agent).with_params[:1]
    print_line(f"wrote {export_environment(spec, params, to, out)}; its README.md says how to run it")


def print_parameters(name: str) -> None:
    from turnwise.envs.registry import load_spec

    spec = load_spec(name)
    print_line(f"{spec.name}: {summarize(spec.summary, spec.install_command)}\n")
    rows = [
        (f"--env.params.{parameter.name}", parameter.type, parameter.default, parameter.description)
        for parameter in spec.parameters()
    ]
    print_table(("parameter", "type", "default", "description"), rows)


def summarize(text: str, install: str | None) -> str:
    return f"{text} (needs: {install})" if install else text


@play_app.default
def play(environment: EnvironmentArgument, /, *, seed: int = 0, overrides: Settings = ()) -> None:
    """Play an environment.

    Parameters
    ----------
    seed
        Index of the training task. Default: 0.
    """
    from turnwise.core.task import Task
    from turnwise.envs.play import play as play_episode
    from turnwise.envs.registry import load_spec
    from turnwise.envs.seeds import seed_for
    from turnwise.run.configure import configure

    config = configure(environment, overrides=merge_settings(overrides, ("env",)))
    spec = load_spec(config.env.kind)
    params = spec.check_params(config.env.params)
    spec.check_resources(params)
    task = Task(env=spec.name, seed=seed_for("train", seed), params=params)
    columns = min(shutil.get_terminal_size().columns, MAX_PREVIEW_COLUMNS) if sys.stdout.isatty() else 0
    play_episode(spec, task, read_line=lambda: input("> "), write=print_line, preview_columns=columns)


@recipes_app.default
def recipes(name: str | None = None, /, *, algos: bool = False) -> None:
    """List the recipes, or print one.

    Parameters
    ----------
    name
        Recipe whose file to print. `turnwise train NAME --dry-run` prints it with all defaults.
    algos
        List published methods instead; every recipe accepts them as --algo.preset METHOD.
    """
    from turnwise.recipes.presets import find_recipe, list_recipes

    if algos:
        list_methods(name)
        return
    if name is not None:
        print_line(find_recipe(name).text.rstrip())
        return
    rows = [(recipe.name, recipe.environment, recipe.summary) for recipe in list_recipes()]
    print_table(("recipe", "environment", "description"), rows)
    print_line(f"\n{spell_command('recipes', 'NAME')} prints one; {spell_command('train', 'NAME')} runs it")
    print_line(f"{spell_command('recipes', '--algos')} lists the methods for --algo.preset")


def list_methods(name: str | None) -> None:
    from turnwise.recipes.presets import find_method, method_names

    if name is not None:
        print_line(find_method(name).text.rstrip())
        return
    print_table(("method", "description"), [(method, find_method(method).summary) for method in method_names()])
    print_line(f"\n{spell_command('recipes', '--algos', 'METHOD')} prints one")
    print_line(f"{spell_command('train', 'RECIPE', '--algo.preset', 'METHOD')} uses it")
