"""turnwise sft"""

from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import WHAT, Settings, command_app, settings
from turnwise.recipes.configure import configure

app = command_app("sft", "RECIPE [OPTIONS] [--SECTION.KEY VALUE]...")


@app.default
def sft(
    recipe: str | None = None,
    /,
    *,
    demos: Annotated[str | None, Parameter(metavar="solver|RUN|FILE.jsonl", group=WHAT)] = None,
    resume: Annotated[str | None, Parameter(metavar="RUN", group=WHAT)] = None,
    count: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    max_minutes: Annotated[float | None, Parameter(name="--max_minutes", metavar="N")] = None,
    name: Annotated[str | None, Parameter(metavar="NAME")] = None,
    overrides: Settings = (),
) -> None:
    """Imitate demonstrations.

    Parameters
    ----------
    recipe
        A recipe, FILE.toml with settings of your own, an environment, or FILE.py:Class.
    demos
        The environment's solver (the default), the successful episodes of a run, or conversations from a file with one
        {"messages": [...]} a line.
    resume
        Instead: go on with this run from its last checkpoint.
    count
        Demonstrations, at most (sft.count).
    epochs
        How often each is seen (sft.epochs).
    seed
        Of everything drawn; equal seeds give equal runs.
    max_minutes
        Stop after this much training; can be resumed.
    name
        Of the run folder.
    """
    shown = demos if resume is not None else demos or "solver"
    typed = settings(
        overrides,
        seed=seed,
        sft__demos=shown,
        sft__count=count,
        sft__epochs=epochs,
        train__max_minutes=max_minutes,
        record__name=name,
    )
    config = configure(recipe, resume=resume, overrides=typed)
    from turnwise.recipes.sft import sft as imitate

    imitate(config, resume=resume is not None, given=[key for key, _ in overrides], recipe=recipe)
