"""Where in a user's own file something is, as FILE:LINE: what an error about their code is mended by."""

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any


def source_location(function: Callable[..., Any]) -> str:
    """Where it begins; its name where that is unknown, as of one that is not written in Python."""
    code = _code(function)
    return _place(code.co_filename, code.co_firstlineno) if code else getattr(function, "__name__", repr(function))


def error_location(error: BaseException, function: Callable[..., Any]) -> str:
    """The last line of the function's own file that ran, not one deep in a library."""
    ran = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    code = _code(function)
    ((file, line),) = [place for place in ran if code and place[0] == code.co_filename][-1:] or ran[-1:]
    return _place(file, line)


def _code(function: Callable[..., Any]) -> CodeType | None:
    found = getattr(inspect.unwrap(function), "__code__", None)
    return found if isinstance(found, CodeType) else None


def _place(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}"
