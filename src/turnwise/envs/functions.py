"""Functions of the user's, given as FILE.py:function."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.names import nearest
from turnwise.envs.registry import import_file


def load_function(given: str, setting: str, instead: Iterable[str] = ()) -> Callable[..., Any]:
    """The function; `setting` is named where it cannot be had, and what else could have been given `instead`."""
    file, _, name = given.rpartition(":")
    if not file.endswith(".py"):
        others = [f'"{each}"' for each in instead]
        what = f"is neither {' nor '.join(others)} nor" if others else "is no"
        raise UserError(f'{setting} "{given}" {what} FILE.py:function: write one of them')
    if "." in name:
        raise UserError(
            f'{setting} "{given}": a function must stand by itself in its file, not in a class: move it out'
        )
    functions = {word: value for word, value in vars(import_file(Path(file))).items() if callable(value)}
    if name not in functions:
        raise UserError(f'{setting}: no function "{name}" in {file}:{nearest(name, _named(functions))}')
    function: Callable[..., Any] = functions[name]
    return function


def _named(functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Those that somebody may have meant: a class is called to be made, not to answer."""
    return [name for name, value in functions.items() if not isinstance(value, type)]
