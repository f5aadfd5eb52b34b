"""Source locations in users' files, as FILE:LINE, for error messages."""

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any


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


def _code(function: Callable[..., Any]) -> CodeType | None:
    found = getattr(inspect.unwrap(function), "__code__", None)
    return found if isinstance(found, CodeType) else None


def _format(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"
