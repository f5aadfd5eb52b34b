"""Check the class of a `TextEnv` before its first episode: its attributes, and what its methods take."""

import inspect
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from turnwise.core.errors import UserError
from turnwise.envs.answers import SEPARATOR
from turnwise.rewards.functions import accepts_arguments
from turnwise.text.truncation import describe_value

ARGUMENTS = {
    "reset": ("rng",),
    "step": ("action",),
    "rules": (),
    "random_action": ("rng",),
    "random_answer": ("rng",),
    "solve": (),
    "explain": ("actions",),
    "draw": (),
    "state_key": (),
    "state_text": (),
    "start_key": (),
}
"""Methods that an environment may define -> their arguments."""


def check_text_env(cls: Any) -> None:
    """Raise UserError if an attribute or a method of the class cannot work."""
    check_params_class(cls.__name__, cls.Params)
    _check_init(cls)
    for name, arguments in ARGUMENTS.items():
        _check_method(cls, name, arguments)
    _check_action_names(cls.__name__, cls.action_names)


def check_params_class(name: str, params: Any) -> None:
    """Raise UserError if the nested class `Params` is not a pydantic model."""
    if not (isinstance(params, type) and issubclass(params, BaseModel)):
        raise UserError(f"{name}.Params is not a pydantic model: make it a subclass of tw.StrictParams.")


def _check_init(cls: Any) -> None:
    signature = inspect.signature(cls)
    try:  # an argument called params may be given by position only if it is the first
        signature.bind(params=None, rng=None) if "params" in signature.parameters else signature.bind(None, rng=None)
    except TypeError:
        raise UserError(
            f"{cls.__name__}.__init__ has other arguments than it is called with: write "
            "def __init__(self, params=None, rng=None) with super().__init__(params, rng), and declare settings of "
            "the environment in a class Params(tw.StrictParams)."
        ) from None


def _check_method(cls: Any, name: str, arguments: tuple[str, ...]) -> None:
    method, written = getattr(cls, name), f"def {name}({', '.join(('self', *arguments))})"
    if isinstance(method, property) or not callable(method):
        raise UserError(f"{cls.__name__}.{name} is not a method: write {written}")
    bound = isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    if not accepts_arguments(method, len(arguments) + (not bound)):
        raise UserError(f"{cls.__name__}.{name} has other arguments than it is called with: write {written}")


def _check_action_names(env: str, names: Any) -> None:
    if isinstance(names, property):  # known only in an episode
        return
    label = f"{env}.action_names"
    if isinstance(names, str):
        raise UserError(f'{label} is a text: write action_names = ("{names}",), with the comma.')
    if not isinstance(names, tuple | list):
        raise UserError(f"{label} is {describe_value(names)}: write a tuple of texts.")
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"{label} contains {describe_value(name)}: write texts, in quotes.")
        if not name.strip() or name != name.strip() or SEPARATOR in name:
            raise UserError(
                f"{label} contains {name!r}, which no answer can match: write names without spaces at their ends and "
                f"without {SEPARATOR}"
            )
    if (twice := _first_repeated(name.casefold() for name in names)) is not None:
        raise UserError(f"{label} contains {twice!r} twice (case is ignored): remove one of them.")


def _first_repeated(names: Iterable[str]) -> str | None:
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
