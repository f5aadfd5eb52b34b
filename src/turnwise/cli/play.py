"""turnwise play"""

from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import Settings, command_app, settings
from turnwise.cli.show import line
from turnwise.core.task import Task
from turnwise.envs.play import play as play_episode
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.recipes.configure import configure

app = command_app("play", "ENV [--seed N] [--env.params.NAME VALUE]...")


@app.default
def play(environment: Annotated[str, Parameter(name="ENV")], /, *, seed: int = 0, overrides: Settings = ()) -> None:
    """Play an environment.

    Parameters
    ----------
    environment
        A recipe, FILE.toml with settings of your own, an environment (`turnwise envs` lists them), or FILE.py:Class.
    seed
        Which of its training tasks, from 0.
    """
    config = configure(environment, overrides=settings(overrides, ("env",)))
    kind = load_spec(config.env.kind)
    params = kind.check_params(config.env.params)
    kind.check_resources(params)
    task = Task(env=kind.name, seed=seed_for("train", seed), params=params)
    play_episode(kind, task, read_line=lambda: input("> "), write=line)
