"""Functions of the user's, given as FILE.py:function."""

from collections.abc import Callable, Iterable
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
    functions = {word: value for word, value in vars(import_file(Path(file))).items() if callable(value)}
    if name not in functions:
        raise UserError(f'{setting}: no function "{name}" in {file}:{nearest(name, functions)}')
    function: Callable[..., Any] = functions[name]
    return function
