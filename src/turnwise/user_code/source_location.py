"""Source locations in users' files, as FILE:LINE, for error messages."""

import inspect
import linecache
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

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
    ours = [each for each in frames if not each[0].startswith(LIBRARIES)]
    users = [each for each in ours if not each[0].startswith(PACKAGE)]
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    found = [] if isinstance(error, SyntaxError) else (users or ours or frames)[-1:]  # its text has the line
    return f"{text} at {_format(*found[0])}" if found else text


def is_raised_by_user(error: BaseException) -> bool:
    """Return whether a `raise` statement outside of turnwise and of libraries raised the error."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    file, line = frames[-1]
    return not file.startswith(LIBRARIES) and linecache.getline(file, line).lstrip().startswith("raise")


def _code(function: Callable[..., Any]) -> CodeType | None:
    found = getattr(inspect.unwrap(function), "__code__", None)
    return found if isinstance(found, CodeType) else None


def _format(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"
