"""Inside a session: read code, run it, answer.

The code that runs here can tamper with everything in this file. The host trusts none of it: it checks sizes, ids and
processes, and kills a session that violates the protocol.
"""

import ast
import builtins
import importlib
import io
import linecache
import os
import random
import signal
import socket
import sys
import traceback
import types
from collections.abc import Callable
from types import TracebackType
from typing import Any

from turnwise.sandbox.protocol import encode, read_frame
from turnwise.text.truncation import truncate_middle

SOURCE_NAME = "<python"
"""Prefix of the file names of session code in stack traces."""
MAX_SOURCE_FRAMES = 6
"""Frames of session code shown in a trace; of a deep recursion, the first and last."""

Answer = dict[str, Any]


class SessionLoop:
    """Runs requests in one module, whose variables persist as at Python's prompt."""

    def __init__(self, sock: socket.socket, *, output_chars: int, memory_mb: int, single_process: bool) -> None:
        self.sock = sock
        self.output_chars = output_chars
        self.memory_mb = memory_mb
        self.single_process = single_process
        self.running = False
        self.main = types.ModuleType("__main__")
        self.main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self.main

    def serve(self) -> None:
        """Answer requests until the host closes the socket."""
        self.output = _redirect_output()
        self.pid = os.getpid()
        os.register_at_fork(after_in_child=self.sock.close)
        self.sock.sendall(encode({"id": 0, **_answer("ok")}))
        while (request := read_frame(self.sock)) is not None:
            signal.signal(signal.SIGINT, self._interrupt)
            answer = self._run_request(request["code"], f"{SOURCE_NAME} {request['id']}>")
            if os.getpid() != self.pid:
                os._exit(0)  # a fork that reached the end of the code: only the parent answers
            self._end_children()
            self.sock.sendall(encode({"id": request["id"], **answer}))

    def _run_request(self, code: str, name: str) -> Answer:
        """An interrupt may arrive at any point up to the end of this method, and never later."""
        try:
            try:
                self.running = True
                value = self._run(code, name)
                answer = _answer("ok", value=None if value is None else truncate_middle(repr(value), self.output_chars))
            except BaseException as error:
                answer = self._answer_error(error)
            self._flush()
            self.running = False
        except BaseException as error:  # an interrupt, or an error that cannot be formatted
            self.running = False
            status = "timeout" if isinstance(error, KeyboardInterrupt) else "error"
            answer = _answer(status, error=type(error).__name__[: self.output_chars])
        return answer

    def _flush(self) -> None:
        try:
            self.output.flush()
        except (ValueError, OSError):  # the code closed it
            self.output = _redirect_output()
        sys.stdout = sys.stderr = self.output

    def _run(self, code: str, name: str) -> object:
        """Run code and return the value of a last expression, as at Python's prompt."""
        _register_source(name, code)
        tree = ast.parse(code, name)
        body = tree.body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        variables = self.main.__dict__
        exec(compile(tree, name, "exec"), variables)
        if not isinstance(last, ast.Expr):
            return None
        return eval(compile(ast.Expression(last.value), name, "eval"), variables)

    def _answer_error(self, error: BaseException) -> Answer:
        if isinstance(error, SystemExit):
            return _answer("ok") if error.code in (None, 0) else _answer("error", error=f"SystemExit: {error.code}")
        text = format_trace(error, self.output_chars)
        if isinstance(error, KeyboardInterrupt):
            return _answer("timeout", error=text)
        if isinstance(error, MemoryError):
            return _answer("memory", error=f"{text}\n(the limit is {self.memory_mb} MiB; variables are kept)")
        return _answer("error", error=text)

    def _interrupt(self, number: int, frame: types.FrameType | None) -> None:
        if self.running:
            raise KeyboardInterrupt

    def _end_children(self) -> None:
        """Kill every process that the call started. This is the first process: all others are its children."""
        if self.single_process:
            return
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    os.kill(-1, signal.SIGKILL)
                    os.waitpid(-1, 0)
            except ChildProcessError:
                return


def seed_everything(seed: int) -> None:
    """Seed the global random streams, which forks would otherwise share with the zygote."""
    random.seed(seed)
    for module, function in (("numpy.random", "seed"), ("sympy.core.random", "seed")):
        if module.partition(".")[0] in sys.modules:
            set_seed: Callable[[int], object] = getattr(importlib.import_module(module), function)
            set_seed(seed % 2**32)


def unload_turnwise() -> None:
    """Remove turnwise from sys.modules, so that session code cannot import it. Loaded functions keep working."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "turnwise"]:
        del sys.modules[name]


def _answer(status: str, *, value: str | None = None, error: str | None = None) -> Answer:
    return {"status": status, "value": value, "error": error}


def _redirect_output() -> io.TextIOWrapper:
    """Write stdout and stderr to one buffer, which keeps their order; flush it before a fork can copy it."""
    raw = io.BufferedWriter(io.FileIO(1, "w", closefd=False), 1 << 16)
    output = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace")
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = output  # type: ignore[misc]
    os.register_at_fork(before=output.flush)
    return output


def _register_source(name: str, code: str) -> None:
    """Let traces show lines of code that is not in a file."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)


def format_trace(error: BaseException, limit: int) -> str:
    """Format a short stack trace: the session's own frames, the last library frame, and one level of causes."""
    lines = []
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and cause is not error:
        lines += [*_last_source_line(cause.__traceback__), _error_line(cause), "which led to:"]
    if isinstance(error, SyntaxError) and str(error.filename).startswith(SOURCE_NAME):
        lines += _syntax_lines(error)
    else:
        lines += ["Traceback (most recent call last):", *_frame_lines(error.__traceback__)]
    lines.append(_error_line(error))
    return truncate_middle("\n".join(lines), limit)


def _frame_lines(trace: TracebackType | None) -> list[str]:
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_this_file(frame.filename)]
    source = [index for index, frame in enumerate(frames) if frame.filename.startswith(SOURCE_NAME)]
    if len(source) > MAX_SOURCE_FRAMES:
        source = [*source[: MAX_SOURCE_FRAMES // 2], *source[-(MAX_SOURCE_FRAMES // 2) :]]
    shown = sorted({*source, *([len(frames) - 1] if frames else [])})
    lines, last = [], -1
    for index in shown:
        if index > last + 1:
            lines.append(f"  ... {index - last - 1} more")
        lines.append(_frame_line(frames[index]))
        last = index
    return lines


def _last_source_line(trace: TracebackType | None) -> list[str]:
    """Empty for an error that was never raised."""
    source = [frame for frame in traceback.extract_tb(trace) if frame.filename.startswith(SOURCE_NAME)]
    return [_frame_line(frame) for frame in source[-1:]]


def _frame_line(frame: traceback.FrameSummary) -> str:
    path = frame.filename if frame.filename.startswith(SOURCE_NAME) else _module_path(frame.filename)
    line = f"  {path}, line {frame.lineno}, in {frame.name}"
    return f"{line}: {frame.line}" if frame.line else line


def _module_path(path: str) -> str:
    """Cut the folder in which a library is installed."""
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


def _error_line(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.msg:
        return f"{type(error).__name__}: {error.msg}"
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _is_this_file(path: str) -> bool:
    return path.rpartition("/")[2] == "session_loop.py" and "sandbox" in path
