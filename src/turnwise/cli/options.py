"""What the commands' options share."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Group, Parameter

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


def short_for(**values: object) -> list[tuple[str, str]]:
    """Options that are short for a setting, as overrides: `train__max_minutes=10` stands for train.max_minutes."""
    return [(name.replace("__", "."), str(value)) for name, value in values.items() if value is not None]
