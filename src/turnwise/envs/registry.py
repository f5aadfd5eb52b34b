"""Load environments and functions: by name, or from a file as FILE.py:Class and FILE.py:function."""

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
from turnwise.core.suggestions import closest_match, suggest
from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.spec import EnvSpec, validate_env_class
from turnwise.envs.text_env import TextEnv

ENVIRONMENTS: dict[str, str] = {name: entry.entry_point for name, entry in CATALOGUE.items()}
"""Name -> module:Class of the built-in environments."""


def load_spec(env_id: str) -> EnvSpec:
    """Load the spec of a built-in environment, or of FILE.py:Class."""
    if env_id in ENVIRONMENTS:
        module, _, class_name = ENVIRONMENTS[env_id].partition(":")
        return EnvSpec(name=env_id, id=env_id, cls=validate_env_class(getattr(import_module(module), class_name)))
    file, _, class_name = env_id.rpartition(":")
    if file.endswith(".py"):
        return _load_from_file(env_id, Path(file), class_name)
    if env_id.endswith(".py"):
        raise UserError(f"{env_id} names no class: write {env_id}:Class")
    near = closest_match(env_id, ENVIRONMENTS)
    fix = f'did you mean "{near}"?' if near else "choose one that `turnwise envs` lists, or FILE.py:Class"
    raise UserError(f'unknown environment "{env_id}": {fix}')


def spec_of(cls: type[TextEnv]) -> EnvSpec:
    """Return the spec of a class, as in `tw.train(env=GuessNumber)`."""
    for name, entry_point in ENVIRONMENTS.items():
        if entry_point == f"{cls.__module__}:{cls.__qualname__}":
            return EnvSpec(name=name, id=name, cls=cls)
    try:
        file = inspect.getsourcefile(cls)
    except (TypeError, OSError):  # defined at a prompt, not in a file
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
        near = closest_match(class_name, vars(module))
        fix = f'did you mean "{near}"?' if near else "check the name after the colon"
        raise UserError(f'no class "{class_name}" in {file}: {fix}')
    return EnvSpec(name=class_name, id=env_id, cls=validate_env_class(getattr(module, class_name)))


def import_file(file: Path) -> ModuleType:
    """Import a file once per process, under a module name that depends only on its path."""
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


def load_function(reference: str, setting: str, alternatives: Iterable[str] = ()) -> Callable[..., Any]:
    """Load FILE.py:function. Errors name `setting` and the `alternatives` that it accepts instead."""
    file, _, name = reference.rpartition(":")
    if not file.endswith(".py"):
        others = [f'"{each}"' for each in alternatives]
        problem = f"is neither {' nor '.join(others)} nor" if others else "is not"
        raise UserError(f'{setting} "{reference}" {problem} FILE.py:function: write one of them')
    if "." in name:
        raise UserError(f'{setting} "{reference}": methods cannot be used: move the function out of its class')
    functions = {word: value for word, value in vars(import_file(Path(file))).items() if callable(value)}
    if name not in functions:
        raise UserError(f'{setting}: no function "{name}" in {file}:{suggest(name, _function_names(functions))}')
    function: Callable[..., Any] = functions[name]
    return function


def _function_names(functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Names to suggest: functions, not classes."""
    return [name for name, value in functions.items() if not isinstance(value, type)]
