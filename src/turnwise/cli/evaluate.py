"""turnwise eval"""

from typing import Annotated, Literal

from cyclopts import Parameter

from turnwise.cli.options import Settings, command_app, settings

app = command_app("eval", "RUN|MODEL [ENV] [OPTIONS] [--SECTION.KEY VALUE]...")


@app.default
def evaluate(
    source: Annotated[str, Parameter(name="RUN|MODEL")],
    environment: Annotated[str | None, Parameter(name="ENV")] = None,
    /,
    *,
    episodes: int | None = None,
    temperature: float | None = None,
    split: Literal["validation", "test"] | None = None,
    overrides: Settings = (),
) -> None:
    """Success rate of a run or a model.

    Parameters
    ----------
    source
        A run (its folder, or its name in runs/), its RUN/checkpoints/NAME, or a model as in model.name.
    environment
        A built-in environment or FILE.py:Class; left out, a run's own.
    episodes
        How many, each with a task of its own (eval.episodes).
    temperature
        Of sampling; 0 is greedy (eval.temperature).
    split
        Which tasks (eval.split).
    """
    from turnwise.recipes.evaluation import evaluate_source

    sections = ("env", "model", "rollout", "context", "eval", "system")
    typed = settings(overrides, sections, eval__episodes=episodes, eval__temperature=temperature, eval__split=split)
    evaluate_source(source, environment, overrides=typed)
