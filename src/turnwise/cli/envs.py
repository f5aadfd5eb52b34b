"""turnwise envs"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from turnwise.cli.options import command_app
from turnwise.cli.show import line, table
from turnwise.core.errors import UserError
from turnwise.core.program import spell_command
from turnwise.envs.catalogue import CATALOGUE, install_command
from turnwise.envs.starter.write import write_starter

app = command_app("envs", "[NAME | new NAME]")


@app.default
def envs(name: str | None = None, new_name: Annotated[str | None, Parameter(show=False)] = None, /) -> None:
    """List the environments, show one, or write one to start from.

    Parameters
    ----------
    name
        A built-in environment, or FILE.py:Class; new NAME writes one to start from, with its test, here.
    """
    if name == "new":
        if new_name is None:
            raise UserError(f"name the new class: {spell_command('envs', 'new', 'GuessNumber')}")
        file, test = write_starter(new_name, Path())
        line(f"wrote {file}, with a guessing game as an example to replace, and {test}")
        line(f"next: {spell_command('play', f'{file}:{new_name}')}")
        line(f"      {spell_command('train', f'{file}:{new_name}')}")
        return
    if new_name is not None:
        raise UserError(f"{new_name} is one word too many: give one environment")
    if name is not None:
        show_parameters(name)
        return
    rows = [(listed, summary(entry.summary, install_command(entry.needs))) for listed, entry in CATALOGUE.items()]
    table(("environment", "what it is"), rows)
    line("\nturnwise envs NAME shows its parameters; turnwise play NAME lets you play it")


def show_parameters(name: str) -> None:
    from turnwise.envs.registry import load_spec

    kind = load_spec(name)
    line(f"{kind.name}: {summary(kind.summary, kind.install_command)}\n")
    rows = [(f"--env.params.{it.name}", it.type, it.default, it.description) for it in kind.parameters()]
    table(("parameter", "type", "default", "meaning"), rows)


def summary(text: str, requires: str | None) -> str:
    return f"{text} (needs: {requires})" if requires else text
