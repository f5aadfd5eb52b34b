"""The user's functions and classes in place of our own."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import new_class
from typing import Any

from turnwise.core.errors import UserError
from turnwise.settings.choice import AnyChoice, Choice
from turnwise.user_code.references import reference_name
from turnwise.user_code.source_location import describe_bug


def check_arguments(function: Callable[..., Any], name: str, takes: tuple[str, ...]) -> None:
    try:
        inspect.signature(function).bind(*takes)
    except TypeError:
        raise UserError(
            f"{name} must take ({', '.join(takes)}). For settings of its own, write a class with them as fields."
        ) from None


def class_of_function(
    base: type[AnyChoice], function: Callable[..., Any], *, setting: str, method: str, argument: str
) -> type[AnyChoice]:
    """Return an alternative without settings whose only method calls the user's function."""
    check_arguments(function, f"{setting} {function.__name__}", takes=(argument,))

    def call(self: Choice, value: Any) -> Any:
        return function(value)

    return new_class(f"Function{base.__name__}", (base,), {}, lambda body: body.update({method: call}))


@contextmanager
def naming(choice: Choice, setting: str) -> Iterator[str]:
    """Turn an exception of the user's code into one line with its file and line number. Yield its name for errors."""
    label = f"{setting} {reference_name(choice.kind)}"
    try:
        yield label
    except UserError:
        raise
    except Exception as error:
        if choice.name:  # a built-in one
            raise
        raise UserError(f"{label} failed: {describe_bug(error)}") from error


def build_own(chosen: Choice, setting: str, given: Any, *methods: str) -> Any:
    """Build the user's source or estimator; UserError if it does not have the methods of the protocol."""
    with naming(chosen, setting):
        built = chosen.build(given)  # type: ignore[attr-defined]
    if missing := [name for name in methods if not callable(getattr(built, name, None))]:
        raise UserError(
            f"{setting} {chosen.kind}: build returned {type(built).__name__}, which has no method {missing[0]}. Return "
            f"an object with {' and '.join(methods)}."
        )
    return built
