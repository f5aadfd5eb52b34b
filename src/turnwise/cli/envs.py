"""turnwise envs"""

from turnwise.cli.options import command_app
from turnwise.cli.show import line, table
from turnwise.envs.kind import EnvKind
from turnwise.envs.registry import ENVIRONMENTS, load

app = command_app("envs", "[NAME]")


@app.default
def envs(name: str | None = None, /) -> None:
    """List the environments, or show one.

    Parameters
    ----------
    name
        A built-in environment, or FILE.py:Class.
    """
    if name is not None:
        show_parameters(load(name))
        return
    table(("environment", "what it is"), [(kind.name, summary(kind)) for kind in map(load, ENVIRONMENTS)])
    line("\nturnwise envs NAME shows its parameters; turnwise play NAME lets you play it")


def show_parameters(kind: EnvKind) -> None:
    line(f"{kind.name}: {summary(kind)}\n")
    rows = [(f"--env.params.{it.name}", it.type, it.default, it.meaning) for it in kind.parameters()]
    table(("parameter", "type", "default", "meaning"), rows)


def summary(kind: EnvKind) -> str:
    return f"{kind.summary} (needs: {kind.requires})" if kind.requires else kind.summary
