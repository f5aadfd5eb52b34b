"""A stack trace, shortened to what helps: the agent's own lines, where a library gave up, and what it said."""

import linecache
import traceback
from types import TracebackType

from turnwise.sandbox.shortening import shortened

NAME = "<python"
"""File names of the agent's code begin so."""
MOST_OWN = 6
"""Own lines shown; in a deep recursion the first and the last say all."""


def remember_source(name: str, code: str) -> None:
    """So that a trace can show the lines of code that is in no file."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)


def short_trace(error: BaseException, limit: int) -> str:
    """Causes first, as Python writes them; one level is enough."""
    lines = []
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and cause is not error:
        lines += [*_last_own_line(cause.__traceback__), _last_line(cause), "which led to:"]
    if isinstance(error, SyntaxError) and str(error.filename).startswith(NAME):
        lines += _syntax_lines(error)
    else:
        lines += ["Traceback (most recent call last):", *_frame_lines(error.__traceback__)]
    lines.append(_last_line(error))
    return shortened("\n".join(lines), limit)


def _frame_lines(trace: TracebackType | None) -> list[str]:
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_ours(frame.filename)]
    own = [index for index, frame in enumerate(frames) if frame.filename.startswith(NAME)]
    if len(own) > MOST_OWN:
        own = [*own[: MOST_OWN // 2], *own[-(MOST_OWN // 2) :]]
    shown = sorted({*own, *([len(frames) - 1] if frames else [])})
    lines, last = [], -1
    for index in shown:
        if index > last + 1:
            lines.append(f"  ... {index - last - 1} more")
        lines.append(_frame_line(frames[index]))
        last = index
    return lines


def _last_own_line(trace: TracebackType | None) -> list[str]:
    """Empty for an error that was never raised."""
    own = [frame for frame in traceback.extract_tb(trace) if frame.filename.startswith(NAME)]
    return [_frame_line(frame) for frame in own[-1:]]


def _frame_line(frame: traceback.FrameSummary) -> str:
    where = frame.filename if frame.filename.startswith(NAME) else _module_path(frame.filename)
    line = f"  {where}, line {frame.lineno}, in {frame.name}"
    return f"{line}: {frame.line}" if frame.line else line


def _module_path(path: str) -> str:
    """From the package on: where the library is installed helps nobody."""
    for mark in ("site-packages/", "dist-packages/", "lib-dynload/"):
        if mark in path:
            return path.rpartition(mark)[2]
    return path.rpartition("/")[2]


def _syntax_lines(error: SyntaxError) -> list[str]:
    text = (error.text or "").rstrip("\n")
    lines = [f"  {error.filename}, line {error.lineno}"]
    if text:
        lines.append(f"    {text}")
        if error.offset:
            lines.append(f"    {' ' * (error.offset - 1)}^")
    return lines


def _last_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.msg:
        return f"{type(error).__name__}: {error.msg}"
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _is_ours(path: str) -> bool:
    return path.rpartition("/")[2] in ("session_loop.py", "traces.py") and "sandbox" in path
