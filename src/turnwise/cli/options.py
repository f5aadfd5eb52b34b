"""What the commands' options share."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Group, Parameter

from turnwise.core.errors import UserError

DEFAULTS = Parameter(show_default=False, negative=())

WHAT = Group("What", sort_key=0)
HOW = Group("How", sort_key=1)
ASK = Group("Only ask", sort_key=2)

Settings = Annotated[Sequence[tuple[str, str]], Parameter(parse=False)]
"""Dotted options as (key, text); `main` hands them over, split from the others."""


def command_app(name: str, usage: str, epilogue: str | None = None) -> App:
    """A command's parser. Its help stands in `commands`, which is read without importing the command."""
    return App(
        name=name,
        usage=f"Usage: turnwise {name} {usage}",
        help_epilogue=epilogue,
        help_format="plaintext",
        default_parameter=DEFAULTS,
        group_arguments=WHAT,
        group_parameters=HOW,
        version_flags=(),
    )


def settings(
    overrides: Sequence[tuple[str, str]], sections: Sequence[str] | None = None, **short: object
) -> list[tuple[str, str]]:
    """All settings that were typed; `sections`: those that the command reads, if not all.

    `short`: options that are short for a setting: `train__max_minutes=10` stands for train.max_minutes.
    """
    named = [(name.replace("__", "."), str(value)) for name, value in short.items() if value is not None]
    seen: set[str] = set()
    for key, _ in [*overrides, *named]:
        plain = key if key.startswith(("env.params.", "env.mix.")) else key.replace("-", "_")
        if plain in seen:
            raise UserError(f"{plain} is given twice: leave one out")
        seen.add(plain)
    for key, _ in overrides:
        if sections is not None and key.partition(".")[0] not in sections:
            raise UserError(f"--{key} has no effect here: this command reads {', '.join(sections)}")
    return [*overrides, *named]
