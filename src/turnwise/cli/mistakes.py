"""What was mistyped, in one line that names the nearest thing that exists."""

from collections.abc import Sequence

from cyclopts import (
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from turnwise.core.suggestions import closest_match, suggest

MEANT: dict[tuple[str, ...], str] = {("sft", "--from"): "--demos"}
"""What is named otherwise in one command than in another."""


def explain(error: CycloptsError, commands: Sequence[str]) -> str:
    """One line for an error of the parser."""
    help_line = f"`{' '.join(['turnwise', *(error.command_chain or ()), '--help'])}`"
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return f'unknown command "{error.unused_tokens[0]}":{suggest(error.unused_tokens[0], commands)}'
    if isinstance(error, UnknownOptionError):
        typed = (error.token.keyword or error.token.value).partition("=")[0]
        meant = MEANT.get((*(error.command_chain or ()), typed)) or _meant_option(typed, error)
        return f"unknown option {typed}: " + (f"did you mean {meant}?" if meant else f"{help_line} lists them")
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given twice: leave one out"
    if isinstance(error, MissingArgumentError) and error.keyword:
        return f"{error.keyword} needs a value: {help_line} shows which"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        return f"{error.argument.name} is missing: {help_line} shows what to give"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f'"{error.unused_tokens[0]}" is one argument too many: {help_line} shows what it takes'
    return str(error)


def _meant_option(typed: str, error: UnknownOptionError) -> str | None:
    """The nearest option; where the command takes settings, `--steps` may mean `--train.steps`."""
    own = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    meanings = {name: [name] for name in [*own, "--help"]}
    if any(not argument.parse for argument in error.argument_collection):
        from turnwise.config.keys import all_keys

        for key in all_keys().values():
            if f"--{key.last}" not in own:
                meanings.setdefault(f"--{key.last}", []).append(f"--{key.name}")
    word = closest_match("--" + typed.lstrip("-").replace("-", "_"), meanings)
    return " or ".join(meanings[word]) if word else None
