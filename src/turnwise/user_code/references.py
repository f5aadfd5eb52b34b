"""References to Python objects in settings: FILE.py:name, or python:name for an object that was passed from Python.

An object that a program passes (`tw.train(env=GuessNumber)`) is remembered under its reference, so that its file is not
imported a second time. Another process finds FILE.py:name by importing the file; python:name exists only in the process
that passed the object.
"""

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from turnwise.core.errors import FOREIGN_ERRORS, UserError, not_a_file
from turnwise.text.suggestions import closest_match, suggest
from turnwise.user_code.source_location import describe_bug

IN_MEMORY = "python:"
"""Prefix of references to objects that no file defines, such as those of a notebook."""

LAMBDA = "<lambda>"

REFERENCE = re.compile(rf"[^\n]+\.py:\w+|{IN_MEMORY}\w+")

_objects: dict[str, Any] = {}
_importing: list[Path] = []


def is_reference(value: object) -> bool:
    """Return whether a setting's value is FILE.py:name or python:name."""
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def reference_name(value: str) -> str:
    """Return the name in FILE.py:name or python:name; any other text unchanged."""
    return value.rpartition(":")[2] if is_reference(value) else value


def reference_to(value: Any) -> str:
    """Return the reference of a class or function, and remember the object under it."""
    name = getattr(value, "__name__", "")
    if not name or not callable(value):
        raise UserError(f"{value!r} is not a class or a function: pass one, or its reference FILE.py:name.")
    if name == LAMBDA:
        reference = _lambda_reference(value)
    else:
        file = _source_file(value)
        reference = f"{file}:{name}" if file is not None else f"{IN_MEMORY}{name}"
    _objects[reference] = value
    return reference


def _lambda_reference(value: Any) -> str:
    """Return a reference of its own for each lambda: they have no name that would tell them apart."""
    known = [name for name in _objects if name.startswith(f"{IN_MEMORY}lambda_")]
    return next((name for name in known if _objects[name] is value), f"{IN_MEMORY}lambda_{len(known) + 1}")


def _source_file(value: Any) -> Path | None:
    """File that defines the object at its top level; None for notebooks, prompts and nested definitions."""
    try:
        file = inspect.getsourcefile(value)
    except (TypeError, OSError):
        return None
    if file is None or value.__qualname__ != value.__name__ or not Path(file).is_file():
        return None
    definition = re.compile(rf"^(class|(async )?def) {re.escape(value.__name__)}\b", re.MULTILINE)
    is_defined = definition.search(Path(file).read_text(encoding="utf-8", errors="replace"))
    return Path(file).resolve() if is_defined else None  # a prompt's classes claim the file of the main program


def find_object(reference: str) -> Any | None:
    """Return the object that this process passed under this reference; None if there is none."""
    if (loaded := _objects.get(reference)) is None and reference.startswith(IN_MEMORY):
        name = reference.removeprefix(IN_MEMORY)
        raise UserError(
            f"{name} was defined in a notebook, at a prompt or as a lambda: save it in a file and name it "
            f"FILE.py:{name}, or pass the object again from Python."
        )
    return loaded


def import_file(file: Path) -> ModuleType:
    """Import a file once per process, under a module name that depends only on its path."""
    if not file.is_file():
        raise UserError(f"{not_a_file(file)}: check the path before the colon.")
    path = file.resolve()
    name = f"turnwise_env_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be imported as Python: check that it is a .py file.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # modules beside the file, as for a script; at the end they shadow nothing
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses and pydantic look their module up by name
    _importing.append(path)
    try:
        spec.loader.exec_module(module)
    except UserError as error:
        del sys.modules[name]
        raise UserError(f"{path}: {error}") from error
    except FOREIGN_ERRORS as error:
        del sys.modules[name]
        raise UserError(f"{path} could not be loaded: {describe_bug(error)}") from error
    finally:
        _importing.pop()
    return module


def refuse_while_importing(call: str) -> None:
    """Raise UserError if a settings file's import reaches this call: it would start a run inside another one."""
    if _importing:
        raise UserError(f'It calls {call} when it is imported: move the call under `if __name__ == "__main__":`')


def load_function(reference: str, setting: str, alternatives: Collection[str] = ()) -> Callable[..., Any]:
    """Load FILE.py:function. Errors name `setting` and the `alternatives` that it accepts instead."""
    if (passed := find_object(reference)) is not None:
        return passed
    file, _, name = reference.rpartition(":")
    if not file.endswith(".py"):
        others = [f'"{alternative}"' for alternative in alternatives]
        problem = f"is neither {' nor '.join(others)} nor" if others else "is not"
        meant = closest_match(reference, alternatives)
        fix = f'did you mean "{meant}"?' if meant else "write one of them."
        raise UserError(f'{setting} "{reference}" {problem} FILE.py:function: {fix}')
    if "." in name:
        raise UserError(f'{setting} "{reference}": methods cannot be used: move the function out of its class.')
    functions = {word: value for word, value in vars(import_file(Path(file))).items() if callable(value)}
    if name not in functions:
        raise UserError(f'{setting}: no function "{name}" in {file}:{suggest(name, _function_names(functions))}')
    function: Callable[..., Any] = functions[name]
    return function


def _function_names(functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Names to suggest: functions, not classes."""
    return [name for name, value in functions.items() if not isinstance(value, type)]
