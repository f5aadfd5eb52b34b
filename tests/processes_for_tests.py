"""Processes that start at once: they are forked from one that has imported turnwise, torch and transformers.

The imports take seconds of processor time in every process that starts with `python`. A forked process is as real:
it has its own memory, session and signals, and can be killed. What a start itself does, such as the order of imports,
is tested with `subprocess`.
"""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver, reduction
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO
from unittest.mock import patch

PRELOADED = ["ranks_for_tests", "turnwise.cli.main", "turnwise.run.train", "turnwise.run.sft"]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)


def start_process(target: Callable[..., Any], *args: Any, daemon: bool = False) -> ForkServerProcess:
    """Start `target(*args)` in a forked process. The first call starts the process that forks."""
    process = CONTEXT.Process(target=target, args=args, daemon=daemon)
    _start_server()
    process.start()
    return process


@cache
def _start_server() -> None:
    """Start the process that forks. It finds the modules to preload by PYTHONPATH alone."""
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()


class _Inherited:
    """A file descriptor that arrives in the process as its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (reduction.DupFd(self.number),)


def _detach(duplicate: Any) -> int:
    found: int = duplicate.detach()
    return found


class Forked:
    """A forked process with the interface of `subprocess.Popen`, as far as tests use it. Killed when it is left."""

    def __init__(
        self,
        target: Callable[..., Any],
        *args: Any,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Redirect the standard streams to file descriptors, if given; call `prepare` before `target`."""
        streams = {0: stdin, 1: stdout, 2: stderr}
        inherited = {number: _Inherited(fd) for number, fd in streams.items() if fd is not None}
        variables = dict(os.environ if env is None else env)
        self._process = start_process(_run, inherited, str(cwd or Path.cwd()), variables, prepare, target, args)
        self.pid = self._process.pid or 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        self.wait()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            self.kill()
            raise TimeoutError(f"process {self.pid} did not end within {timeout} s")
        return code


def _run(
    inherited: Mapping[int, int],
    cwd: str,
    variables: Mapping[str, str],
    prepare: Callable[[], None] | None,
    target: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    for number, fd in inherited.items():
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has put /dev/null in its place
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    importlib.import_module("turnwise.run.training_run").default_threads = lambda: 1  # as in conftest.py
    os.fsync = lambda fd: None  # as in conftest.py
    if prepare is not None:
        prepare()
    target(*args)


@contextmanager
def forked_with_output(target: Callable[..., Any], *args: Any, **options: Any) -> Iterator[tuple[Forked, TextIO]]:
    """Start a forked process; yield it and what it prints. Wait for its end."""
    read, write = os.pipe()
    process = Forked(target, *args, stdout=write, **options)
    os.close(write)
    with process, os.fdopen(read) as lines:
        yield process, lines


def run_turnwise(words: list[str]) -> None:
    """Run the command line, like `turnwise WORDS`."""
    from turnwise.cli.main import main

    sys.argv = ["turnwise", *words]
    sys.exit(main())
