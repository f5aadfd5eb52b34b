"""Environments by name, or by FILE.py:Class."""

import difflib
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from turnwise.core.errors import FOREIGN_ERRORS, UserError
from turnwise.core.suggestions import suggest
from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.spec import EnvSpec, validate_env_class
from turnwise.envs.text_env import TextEnv

ENVIRONMENTS: dict[str, str] = {name: entry.entry_point for name, entry in CATALOGUE.items()}
"""name -> module:Class"""


def load_spec(env_id: str) -> EnvSpec:
    """The environment of this name, or the class of this file."""
    if env_id in ENVIRONMENTS:
        module, _, class_name = ENVIRONMENTS[env_id].partition(":")
        return EnvSpec(name=env_id, id=env_id, cls=validate_env_class(getattr(import_module(module), class_name)))
    file, _, class_name = env_id.rpartition(":")
    if file.endswith(".py"):
        return _load_from_file(env_id, Path(file), class_name)
    if env_id.endswith(".py"):
        raise UserError(f"{env_id} names no class: write {env_id}:Class")
    near = difflib.get_close_matches(env_id, ENVIRONMENTS, n=1, cutoff=0.5)
    mend = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(ENVIRONMENTS)}, or FILE.py:Class"
    raise UserError(f"no environment {env_id!r}; {mend}")


def spec_of(cls: type[TextEnv]) -> EnvSpec:
    """The kind of a class that a program has at hand, as in `tw.train(env=GuessNumber)`."""
    for name, place in ENVIRONMENTS.items():
        if place == f"{cls.__module__}:{cls.__qualname__}":
            return EnvSpec(name=name, id=name, cls=cls)
    try:
        file = inspect.getsourcefile(cls)
    except (TypeError, OSError):  # typed at a prompt: it stands in no file
        file = None
    reachable = file is not None and Path(file).is_file() and cls.__qualname__ == cls.__name__
    return EnvSpec(
        name=cls.__name__,
        id=f"{Path(str(file)).resolve()}:{cls.__name__}" if reachable else "",
        cls=validate_env_class(cls),
    )


def _load_from_file(env_id: str, file: Path, class_name: str) -> EnvSpec:
    module = import_file(file)
    if not hasattr(module, class_name):
        near = difflib.get_close_matches(class_name, vars(module), n=1, cutoff=0.5)
        mend = f"did you mean {near[0]}?" if near else "check the name after the colon"
        raise UserError(f"no class {class_name!r} in {file}; {mend}")
    return EnvSpec(name=class_name, id=env_id, cls=validate_env_class(getattr(module, class_name)))


def import_file(file: Path) -> ModuleType:
    """Imports the file once a process, under a name that depends on its path alone."""
    if not file.is_file():
        raise UserError(f"no file {file}: check the path before the colon")
    path = file.resolve()
    name = f"turnwise_env_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be imported as Python: check that it is a .py file")
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses and pydantic look their module up by name
    try:
        spec.loader.exec_module(module)
    except UserError as error:
        del sys.modules[name]
        raise UserError(f"{path}: {error}") from error
    except FOREIGN_ERRORS as error:
        del sys.modules[name]
        raise UserError(f"{path} could not be loaded: {type(error).__name__}: {error}") from error
    return module


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
        raise UserError(f'{setting}: no function "{name}" in {file}:{suggest(name, _named(functions))}')
    function: Callable[..., Any] = functions[name]
    return function


def _named(functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Those that somebody may have meant: a class is called to be made, not to answer."""
    return [name for name, value in functions.items() if not isinstance(value, type)]
