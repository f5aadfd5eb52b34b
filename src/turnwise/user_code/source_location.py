"""Bugs in users' code: their location as FILE:LINE, and failures of environments, which are never rewarded."""

import inspect
import linecache
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from turnwise.core.errors import FOREIGN_ERRORS, EnvironmentFailure, ImageError, InfrastructureFailure, UserError
from turnwise.text.truncation import one_line, shorten

MAX_MESSAGE = 300
"""Characters of an exception's text that an error quotes."""
PACKAGE = str(Path(__file__).parents[1]) + os.sep
LIBRARIES = ("<", *(path + os.sep for path in sysconfig.get_paths().values()))
"""Prefixes of file names of the standard library and installed packages."""


def source_location(function: Callable[..., Any]) -> str:
    """Return where a function is defined, or its name if it is not written in Python."""
    code = _code(function)
    return _format(code.co_filename, code.co_firstlineno) if code else getattr(function, "__name__", repr(function))


def error_location(error: BaseException, function: Callable[..., Any]) -> str:
    """Return the last line of the function's own file in the traceback, rather than one inside a library."""
    ran = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    code = _code(function)
    ((file, line),) = [frame for frame in ran if code and frame[0] == code.co_filename][-1:] or ran[-1:]
    return _format(file, line)


def describe_bug(error: BaseException) -> str:
    """Return an error with its location, preferably in a user's file: "KeyError: 'x' at my_env.py:12"."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if not frame[0].startswith(LIBRARIES)]
    users = [frame for frame in ours if not frame[0].startswith(PACKAGE)]
    text = f"{type(error).__name__}: {shorten(one_line(str(error)), MAX_MESSAGE)}".removesuffix(": ")
    innermost = [] if isinstance(error, SyntaxError) else (users or ours or frames)[-1:]  # its text has the line
    return f"{text} at {_format(*innermost[0])}" if innermost else text


def is_raised_by_user(error: BaseException) -> bool:
    """Return whether a `raise` statement outside of turnwise and of libraries raised the error."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    file, line = frames[-1]
    return not file.startswith(LIBRARIES) and linecache.getline(file, line).lstrip().startswith("raise")


def _code(function: Callable[..., Any]) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _format(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"


@contextmanager
def failure_boundary(where: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert an exception of environment code into EnvironmentFailure: the member is retried, not rewarded 0.

    Typed failures, `passing`, and errors that the user has to fix (a rejected API key, an exhausted budget) pass. An
    image that cannot be used fails only its episode: a camera or a download may break one of thousands.
    """
    typed: tuple[type[Exception], ...] = (UserError, EnvironmentFailure, InfrastructureFailure, *passing)
    try:
        yield
    except ImageError as error:
        raise EnvironmentFailure(f"{where}: {error}") from error
    except typed:
        raise
    except FOREIGN_ERRORS as error:
        raise EnvironmentFailure(f"{where} raised {describe_bug(error)}") from error
