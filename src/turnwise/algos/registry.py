"""The type of ADVANTAGES, LOSSES and FILTERS: built-in ones by name; a key FILE.py:function loads the user's.

    def centred(inputs, params):            # algo.advantage = my_algo.py:centred
        returns = (inputs.token_rewards * inputs.mask).sum(1, keepdim=True)
        return (returns - returns.mean()).expand_as(inputs.mask)

A function that needs more than rewards declares it: `@tw.advantage(needs_critic=True)`, `@tw.loss(adds_penalty=True)`.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from turnwise.core.errors import UserError
from turnwise.text.suggestions import suggest
from turnwise.user_code.references import is_reference, load_function
from turnwise.user_code.source_location import error_location

Part = TypeVar("Part")
Function = TypeVar("Function", bound=Callable[..., Any])
TRAITS_ATTRIBUTE = "__turnwise_traits__"
"""Attribute of a user's function with the traits that it declares."""


class Registry(dict[str, Part]):
    """Parts of an algorithm by name. A key that is not a name is a reference to the user's function."""

    def __init__(self, setting: str, wrap: Callable[..., Part], parts: Mapping[str, Part]) -> None:
        super().__init__(parts)
        self.setting = setting
        self.wrap = wrap

    def __missing__(self, reference: str) -> Part:
        if not is_reference(reference):
            raise UserError(f'Unknown {self.setting} "{reference}":{suggest(reference, list(self))}')
        function = load_function(reference, self.setting, list(self))
        return self.wrap(
            guard(function, f"{self.setting} {function.__name__}"), **getattr(function, TRAITS_ATTRIBUTE, {})
        )


def declare_traits(traits: Mapping[str, Any], allowed: tuple[str, ...], name: str) -> Callable[[Function], Function]:
    """Return a decorator that attaches traits for `Registry` to a function."""
    if unknown := [trait for trait in traits if trait not in allowed]:
        raise UserError(f"@tw.{name} has no argument {unknown[0]!r}: choose from {', '.join(allowed)}")

    def decorate(function: Function) -> Function:
        setattr(function, TRAITS_ATTRIBUTE, dict(traits))
        return function

    return decorate


def guard(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Turn an exception of the user's function into one line with its file and line number."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{name} failed at {error_location(error, function)}: {describe(error)}") from error

    return call


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
