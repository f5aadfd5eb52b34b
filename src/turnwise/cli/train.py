"""turnwise train"""

from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import ASK, WHAT, Settings, command_app, settings
from turnwise.cli.settings import most_used, print_all_settings
from turnwise.cli.show import line
from turnwise.config.keys import describe
from turnwise.config.load import parse_seeds
from turnwise.core.errors import UserError
from turnwise.recipes.configure import configure

app = command_app("train", "RECIPE [OPTIONS] [--SECTION.KEY VALUE]...", epilogue=most_used())


@app.default
def train(
    recipe: str | None = None,
    /,
    *,
    start_from: Annotated[str | None, Parameter(name="--from", metavar="RUN", group=WHAT)] = None,
    resume: Annotated[str | None, Parameter(metavar="RUN", group=WHAT)] = None,
    seed: int | None = None,
    seeds: Annotated[str | None, Parameter(metavar="0,1,2")] = None,
    max_minutes: Annotated[float | None, Parameter(name="--max_minutes", metavar="N")] = None,
    name: Annotated[str | None, Parameter(metavar="NAME")] = None,
    dry_run: Annotated[bool, Parameter(group=ASK)] = False,
    help_all: Annotated[bool, Parameter(group=ASK)] = False,
    overrides: Settings = (),
) -> None:
    """Train an agent.

    Parameters
    ----------
    recipe
        A recipe, FILE.toml with settings of your own, an environment, or FILE.py:Class.
    start_from
        Instead: a new run with the settings of this one.
    resume
        Instead: go on with this run from its last checkpoint.
    seed
        Of everything drawn; equal seeds give equal runs.
    seeds
        A run for each, and one table over them.
    max_minutes
        Stop after this much training; can be resumed.
    name
        Of the run folder.
    dry_run
        Print every setting, after checking it and that servers answer; train nothing.
    help_all
        List every setting with its meaning.
    """
    if help_all:
        print_all_settings()
        return
    if seeds is not None and (other := "--seed" if seed is not None else "--resume" if resume is not None else None):
        raise UserError(f"--seeds starts a run for each of them, so leave out {other}, or --seeds")
    typed = settings(overrides, seed=seed, train__max_minutes=max_minutes, record__name=name)
    config = configure(recipe, start_from=start_from, resume=resume, overrides=typed)
    given = [key for key, _ in overrides]
    several = parse_seeds(seeds) if seeds is not None else ()
    if dry_run:
        from turnwise.recipes.validate import check_run

        check_run(config, given=given, resume=resume is not None)
        line(describe(config))
        return
    from turnwise.recipes.run import train as train_run
    from turnwise.recipes.run import train_seeds

    if several:
        train_seeds(config, several, given=given)
    else:
        train_run(config, resume=resume is not None, given=given)
