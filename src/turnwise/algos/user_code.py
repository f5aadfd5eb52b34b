"""The user's functions and classes in place of our own."""

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from turnwise.core.errors import UserError
from turnwise.settings.choice import Choice
from turnwise.user_code.references import reference_name
from turnwise.user_code.source_location import PACKAGE, describe_bug


def check_arguments(function: Callable[..., Any], name: str, takes: tuple[str, ...]) -> None:
    try:
        inspect.signature(function).bind(*takes)
    except TypeError:
        raise UserError(
            f"{name} must take ({', '.join(takes)}). For settings of its own, write a class with them as fields."
        ) from None


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
        if isinstance(error, NotImplementedError) and (method := _missing_method(error)):
            raise UserError(f"{label} has no {method}: define it.") from error
        raise UserError(f"{label} failed: {describe_bug(error)}") from error


def _missing_method(error: NotImplementedError) -> str:
    """Return the method of a base class here that raised because the user's class lacks it; empty for other code."""
    code = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return code.co_name if code.co_filename.startswith(PACKAGE) else ""
