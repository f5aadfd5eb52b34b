"""Command-line parsing: options that commands share, dotted settings (`--algo.kl_coef 0.1`), and error messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from turnwise.core.errors import UserError
from turnwise.text.suggestions import closest_match, suggest

DEFAULTS = Parameter(show_default=False, negative=())

INPUT = Group("Input", sort_key=0)
OPTIONS = Group("Options", sort_key=1)
INFORMATION = Group("Information", sort_key=2)

Settings = Annotated[Sequence[tuple[str, str]], Parameter(parse=False)]
"""Dotted options as (key, text) pairs. `main.run` splits them from the other options and passes them on."""

EnvironmentArgument = Annotated[
    str,
    Parameter(
        name="ENV",
        help="Recipe, environment (`turnwise envs` lists them), FILE.toml with your own settings, or FILE.py:Class.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ListenArguments:
    """Options of commands that serve."""

    port: Annotated[int, Parameter(metavar="N")] = 8000
    """Port to listen on; 0 for any free port. Default: 8000."""
    host: Annotated[str, Parameter(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on. Default: 127.0.0.1, this machine only."""


LISTEN = ListenArguments()

UNDOTTED = ("engine", "context", "critic", "agent")
"""Settings without a section. (The configuration is not imported here.)"""
OWN_OPTIONS = {"doctor": ("agent",)}
"""Command -> names of settings that are options of its own there."""

RENAMED_OPTIONS: dict[tuple[str, ...], str] = {
    ("sft", "--from"): "--demos",
    ("merge", "--to"): "--into",
    ("export", "--into"): "--to",
}
"""(command, typed option) -> the option of that command, where another command uses the typed name."""


def command_app(name: str, usage: str, epilogue: str | None = None) -> App:
    """Return the parser of one command. Its help text is in `commands`, which loads without importing the command."""
    return App(
        name=name,
        usage=f"Usage: turnwise {name} {usage}",
        help_epilogue=epilogue,
        help_format="plaintext",
        default_parameter=DEFAULTS,
        group_arguments=INPUT,
        group_parameters=OPTIONS,
        version_flags=(),
    )


def split_overrides(tokens: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Split settings, which are dotted options and UNDOTTED, from the other tokens; return both, in the order typed.

    train frozen_lake --algo.loss.clip_high 0.28 --seed 3 --train.steps=50
    -> [train frozen_lake --seed 3], [(algo.loss.clip_high, 0.28), (train.steps, 50)]
    """
    rest: list[str] = []
    overrides: list[tuple[str, str]] = []
    remaining = iter(tokens)
    undotted = set(UNDOTTED).difference(OWN_OPTIONS.get(tokens[0], ()) if tokens else ())
    for token in remaining:
        name, equals, text = token.partition("=")
        if token == "--":
            return [*rest, token, *remaining], overrides
        if not (name.startswith("--") and ("." in name or name.removeprefix("--") in undotted)):
            rest.append(token)
            continue
        if not equals:
            text = next(remaining, "--")
            if text.startswith("--"):
                raise UserError(f"{name} needs a value: {name} VALUE, or {name}=VALUE if the value starts with --.")
        overrides.append((name.removeprefix("--"), text))
    return rest, overrides


def merge_settings(
    overrides: Sequence[tuple[str, str]], sections: Sequence[str] | None = None, **shortcuts: object
) -> list[tuple[str, str]]:
    """Return all settings that were typed, dotted or by a shortcut. Raises UserError for a setting given twice.

    `sections`: the sections that the command reads; None: all.
    `shortcuts`: values of options that stand for a setting: `train__max_minutes=10` sets train.max_minutes.
    """
    by_shortcut = [(name.replace("__", "."), str(value)) for name, value in shortcuts.items() if value is not None]
    seen: set[str] = set()
    for key, _ in [*overrides, *by_shortcut]:
        name = key if key.startswith(("env.params.", "env.mix.")) else key.replace("-", "_")
        if name in seen:
            raise UserError(f"{name} is given twice: remove one of them.")
        seen.add(name)
    for key, _ in overrides:
        if sections is not None and key.partition(".")[0] not in sections:
            raise UserError(f"--{key} has no effect here: this command reads only {', '.join(sections)}")
    return [*overrides, *by_shortcut]


def explain(error: CycloptsError, commands: Sequence[str]) -> str:
    """Describe a parser error in one line, with the closest valid name if there is one."""
    see_help = f"see `{' '.join(['turnwise', *(error.command_chain or ()), '--help'])}`"
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return _explain_unknown_command(error.unused_tokens[0], commands)
    if (typed := _unknown_option(error)) is not None:
        return f"Unknown option {typed}: {_suggest_option(typed, error) or see_help}"
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given twice: remove one of them"
    if isinstance(error, MissingArgumentError) and error.keyword:
        return f"{error.keyword} needs a value: {see_help}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return f"{error.argument.name} is missing: {see_help}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        typed = error.unused_tokens[0]
        is_setting = "=" in typed.strip("=")
        return f'Unexpected argument "{typed}": {f"write --{typed}" if is_setting else see_help}'
    return str(error)


def _explain_unknown_command(typed: str, commands: Sequence[str]) -> str:
    if typed not in commands:
        from turnwise.envs.catalogue import CATALOGUE
        from turnwise.recipes.presets import recipe_names

        if typed in CATALOGUE or typed in recipe_names():
            return f'Unknown command "{typed}": did you mean `turnwise train {typed}`?'
    return f'Unknown command "{typed}":{suggest(typed, commands)}'


def _unknown_option(error: CycloptsError) -> str | None:
    """Return the unknown option. The parser reports a missing one before it."""
    if isinstance(error, UnknownOptionError):
        return (error.token.keyword or error.token.value).partition("=")[0]
    if isinstance(error, MissingArgumentError) and not error.keyword:
        return next((token.partition("=")[0] for token in error.unused_tokens or () if token.startswith("--")), None)
    return None


def _suggest_option(typed: str, error: CycloptsError) -> str | None:
    """Return the setting that a name of another library stands for, or else the closest option."""
    arguments = () if error.app is None else error.app.assemble_argument_collection()
    options = [name for argument in arguments if argument.parse for name in argument.names if name.startswith("--")]
    takes_settings = any(not argument.parse for argument in arguments)  # which are not parsed as options
    match = RENAMED_OPTIONS.get((*(error.command_chain or ()), typed))
    if match is None and takes_settings:
        from turnwise.config.foreign_names import find_foreign_name

        if (found := find_foreign_name(typed.lstrip("-"))) is not None:
            return f"use --{found[0]} ({found[1]})"
    match = match or _closest_option(typed, options, takes_settings)
    return f"did you mean {match}?" if match else None


def _closest_option(typed: str, options: Sequence[str], takes_settings: bool) -> str | None:
    """Return the closest option; in a command that takes settings, `--steps` also matches `--train.steps`."""
    candidates = {_plain_name(option): [option] for option in [*options, "--help"]}
    if takes_settings:
        from turnwise.config.keys import all_keys

        for key in all_keys().values():
            if candidates.get(key.last, [""])[0] not in options:
                candidates.setdefault(key.last, []).append(f"--{key.name}")
    match = closest_match(_plain_name(typed), candidates)
    return " or ".join(candidates[match]) if match else None


def _plain_name(option: str) -> str:
    """Return the name without the hyphens before it, which make short names similar."""
    return option.lstrip("-").replace("-", "_")
