"""The inside of a session: reads code, runs it, answers. Everything here can be tampered with by the code it runs,
and nothing outside may trust it; the host checks sizes, ids and processes, and kills what does not fit.
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

from turnwise.core.truncation import truncate_middle
from turnwise.sandbox.protocol import encode, read_frame

Reply = dict[str, Any]


SOURCE_NAME = "<python"
"""File names of the agent's code begin so."""
MOST_OWN = 6
"""Own lines shown; in a deep recursion the first and the last say all."""


class SessionLoop:
    """Variables live in one module, as at Python's prompt."""

    def __init__(self, sock: socket.socket, *, output_chars: int, memory_mb: int, alone: bool) -> None:
        self.sock = sock
        self.output_chars = output_chars
        self.memory_mb = memory_mb
        self.alone = alone
        self.running = False
        self.main = types.ModuleType("__main__")
        self.main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self.main

    def serve(self) -> None:
        """Waits for the host's next request; ends when the host closes the socket."""
        self.output = _catch_output()
        self.pid = os.getpid()
        os.register_at_fork(after_in_child=self.sock.close)
        self.sock.sendall(encode({"id": 0, **_answer("ok")}))
        while (request := read_frame(self.sock)) is not None:
            signal.signal(signal.SIGINT, self._interrupt)
            answer = self._answer(request["code"], f"{SOURCE_NAME} {request['id']}>")
            if os.getpid() != self.pid:
                os._exit(0)  # a fork that ran to the end of the code: one answer is enough
            self._end_children()
            self.sock.sendall(encode({"id": request["id"], **answer}))

    def _answer(self, code: str, name: str) -> Reply:
        """An interrupt may come at any moment up to the end of this function, and never later."""
        try:
            try:
                self.running = True
                value = self._run(code, name)
                answer = _answer("ok", value=None if value is None else truncate_middle(repr(value), self.output_chars))
            except BaseException as error:
                answer = self._failed(error)
            self._flush()
            self.running = False
        except BaseException as error:  # an interrupt, or an error that cannot even be written down
            self.running = False
            status = "timeout" if isinstance(error, KeyboardInterrupt) else "error"
            answer = _answer(status, error=type(error).__name__[: self.output_chars])
        return answer

    def _flush(self) -> None:
        try:
            self.output.flush()
        except (ValueError, OSError):  # the code closed it
            self.output = _catch_output()
        sys.stdout = sys.stderr = self.output

    def _run(self, code: str, name: str) -> object:
        """The value of a last expression, as at the prompt."""
        register_source(name, code)
        tree = ast.parse(code, name)
        body = tree.body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        variables = self.main.__dict__
        exec(compile(tree, name, "exec"), variables)
        if not isinstance(last, ast.Expr):
            return None
        return eval(compile(ast.Expression(last.value), name, "eval"), variables)

    def _failed(self, error: BaseException) -> Reply:
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
        """Whatever the call started ends with it: this is the first process, so all others are its children."""
        if self.alone:
            return
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    os.kill(-1, signal.SIGKILL)
                    os.waitpid(-1, 0)
            except ChildProcessError:
                return


def seed_everything(seed: int) -> None:
    """Forks share the zygote's random states; what is repeatable is set by the caller's seed."""
    random.seed(seed)
    for module, function in (("numpy.random", "seed"), ("sympy.core.random", "seed")):
        if module.partition(".")[0] in sys.modules:
            seeding: Callable[[int], object] = getattr(importlib.import_module(module), function)
            seeding(seed % 2**32)


def unload_turnwise() -> None:
    """Session code has no business with these modules; they go on working without their names."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "turnwise"]:
        del sys.modules[name]


def _answer(status: str, *, value: str | None = None, error: str | None = None) -> Reply:
    return {"status": status, "value": value, "error": error}


def _catch_output() -> io.TextIOWrapper:
    """One buffer for both streams keeps their order; children must not inherit what is not yet written."""
    raw = io.BufferedWriter(io.FileIO(1, "w", closefd=False), 1 << 16)
    output = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace")
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = output  # type: ignore[misc]
    os.register_at_fork(before=output.flush)
    return output


def register_source(name: str, code: str) -> None:
    """So that a trace can show the lines of code that is in no file."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)


def format_trace(error: BaseException, limit: int) -> str:
    """Causes first, as Python writes them; one level is enough."""
    lines = []
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and cause is not error:
        lines += [*_last_own_line(cause.__traceback__), _last_line(cause), "which led to:"]
    if isinstance(error, SyntaxError) and str(error.filename).startswith(SOURCE_NAME):
        lines += _syntax_lines(error)
    else:
        lines += ["Traceback (most recent call last):", *_frame_lines(error.__traceback__)]
    lines.append(_last_line(error))
    return truncate_middle("\n".join(lines), limit)


def _frame_lines(trace: TracebackType | None) -> list[str]:
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_ours(frame.filename)]
    own = [index for index, frame in enumerate(frames) if frame.filename.startswith(SOURCE_NAME)]
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
    own = [frame for frame in traceback.extract_tb(trace) if frame.filename.startswith(SOURCE_NAME)]
    return [_frame_line(frame) for frame in own[-1:]]


def _frame_line(frame: traceback.FrameSummary) -> str:
    where = frame.filename if frame.filename.startswith(SOURCE_NAME) else _module_path(frame.filename)
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
    return path.rpartition("/")[2] == "session_loop.py" and "sandbox" in path
