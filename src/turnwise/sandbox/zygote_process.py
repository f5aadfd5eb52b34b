"""The host's side of a zygote: starts the process, asks it for sessions, hears of their ends."""

import asyncio
import errno
import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.sandbox.processes import descendants, pid_of, process_usage
from turnwise.sandbox.protocol import CONTROL, ZygoteConfig, receive
from turnwise.sandbox.python_install import PythonInstall, python_executable
from turnwise.sandbox.scratch_folders import create_base, remove_abandoned_bases, remove_base
from turnwise.sandbox.types import SandboxFailure, SandboxLimits, Tier

READY_S = 60.0
ANSWER_S = 20.0
"""Longer than any of our own steps takes on a busy machine: beyond it something is broken."""
MANY_DESCRIPTORS = 1 << 16
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "USER": "agent",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "MPLBACKEND": "Agg",
}
"""All that a zygote is started with: what is cleared later stays readable on the stack.
A fork cannot change its hash seed.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionHandle:
    """A session's process as the zygote handed it over."""

    pidfd: int
    pid: int
    scratch: str
    exited: "asyncio.Future[int]"
    """Its exit status, negative for a signal."""


class ZygoteStartError(Exception):
    """The zygote could not be started: what it said."""


class ZygoteProcess:
    """`await start()` first. All methods run in one event loop."""

    def __init__(self, tier: Tier, limits: SandboxLimits, prefix: PythonInstall) -> None:
        self.tier = tier
        self.limits = limits
        self.prefix = prefix
        self.alive = False
        self.packages: Mapping[str, str] = {}
        self.jail = ""
        self.base_bytes = 0
        self.process: subprocess.Popen[bytes]
        self._errors = -1
        self._numbers = 0
        self._starting: dict[int, asyncio.Future[SessionHandle]] = {}
        self._running: dict[int, asyncio.Future[int]] = {}
        self._scratch: tuple[str, int] | None = None

    async def start(self) -> None:
        """ZygoteFailed says which step was refused. However this ends early, nothing of the zygote stays."""
        self.loop = asyncio.get_running_loop()
        _allow_many_descriptors()
        if self.tier != "namespaces":
            remove_abandoned_bases()
            self._scratch = create_base()
        self._spawn()
        try:
            ready = await asyncio.wait_for(self._first_message(), READY_S)
            if "ready" not in ready:
                raise ZygoteStartError(ready.get("failed") or self._last_words())
        except TimeoutError:
            self.kill()
            raise ZygoteStartError(f"it was not ready within {READY_S:.0f} s") from None
        except BaseException:
            self.kill()
            raise
        self.packages = ready["ready"]["packages"]
        self.jail = ready["ready"]["jail"]
        self.base_bytes = max(found.resident_bytes for pid in self._pids() if (found := process_usage(pid)))
        self.alive = True
        self.loop.add_reader(self.control, self._hear)

    async def start_session(self, *, sock: socket.socket, output: int, seed: int) -> SessionHandle:
        """The zygote gets copies of both descriptors; the caller closes its own."""
        self._numbers += 1
        number = self._numbers
        future: asyncio.Future[SessionHandle] = self.loop.create_future()
        self._starting[number] = future
        try:
            message = json.dumps({"start": number, "seed": seed}).encode()
            await self._send(message, [sock.fileno(), output])
            return await asyncio.wait_for(asyncio.shield(future), ANSWER_S)
        except TimeoutError:
            raise SandboxFailure(f"the sandbox's zygote did not start a session within {ANSWER_S:.0f} s") from None
        except asyncio.CancelledError:
            future.add_done_callback(_discard)
            raise
        finally:
            if future.done():
                self._starting.pop(number, None)

    async def close(self) -> None:
        """Ends the zygote and waits until it has gone with all of its sessions."""
        if self.alive:
            self._forget()
            watched: asyncio.Future[None] = self.loop.create_future()
            pidfd = os.pidfd_open(self.process.pid)
            self.loop.add_reader(pidfd, partial(_wake, watched))
            try:
                await asyncio.wait_for(watched, ANSWER_S)
            except TimeoutError:
                self.process.kill()
            finally:
                self.loop.remove_reader(pidfd)
                os.close(pidfd)
        self.kill()

    def kill(self) -> None:
        """At once, without an event loop. Its death is that of every session."""
        if self.alive:
            self._forget()
        self.process.kill()
        self.process.wait()
        self.control.close()
        if self._scratch is not None:
            base, lock = self._scratch
            self._scratch = None
            remove_base(base, lock)
        with suppress(OSError):
            os.close(self._errors)
        self._errors = -1

    def _spawn(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self._errors = os.memfd_create("sandbox-errors")
        source = str(Path(__file__).parents[2])
        script = f"import sys; sys.path.insert(0, {source!r}); from turnwise.sandbox.zygote import main; main()"
        environment = {**ENVIRONMENT, **_library_path()}
        with theirs:
            self.process = subprocess.Popen(
                [
                    python_executable(),
                    "-s",
                    "-S",
                    "-P",
                    "-c",
                    f"import os; os.dup2({theirs.fileno()}, {CONTROL}); {script}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        config = ZygoteConfig(
            tier=self.tier,
            limits=self.limits,
            prefix=self.prefix,
            host_pid=os.getpid(),
            scratch=self._scratch[0] if self._scratch else "",
        )
        self.control.send(config.to_json())

    async def _first_message(self) -> dict[str, Any]:
        message = await self.loop.sock_recv(self.control, 1 << 16)
        return json.loads(message) if message else {}

    async def _send(self, message: bytes, descriptors: list[int]) -> None:
        """waits for: room in the control socket. unblocked by: the zygote, reading."""
        while True:
            try:
                socket.send_fds(self.control, [message], descriptors)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                self._lost()
                raise SandboxFailure(f"the sandbox's zygote is gone: {error.strerror}") from None

    def _hear(self) -> None:
        """Everything that the zygote has said by now."""
        while self.alive:
            try:
                message, descriptors = receive(self.control)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                self._lost()
                return
            self._take(json.loads(message), descriptors)

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "exited" in message:
            future = self._running.pop(message["exited"], None)
            if future is not None and not future.done():
                future.set_result(message["status"])
            return
        starting = self._starting.pop(message["started"])
        try:
            started = self._started(message, descriptors)
        except OSError as error:
            if not starting.done():
                problem = message.get("failed") or error.strerror
                starting.set_exception(SandboxFailure(f"the sandbox could not start a session: {problem}"))
            return
        if starting.done():
            _end(started)
        else:
            starting.set_result(started)

    def _started(self, message: dict[str, Any], descriptors: list[int]) -> SessionHandle:
        """OSError: there is none, or no descriptor is left for it; it ends when its socket is closed."""
        if not descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        pidfd = descriptors[0]
        try:
            pid = pid_of(pidfd)
        except OSError:
            os.close(pidfd)
            raise
        exited: asyncio.Future[int] = self.loop.create_future()
        self._running[message["started"]] = exited
        return SessionHandle(pidfd=pidfd, pid=pid, scratch=message["scratch"], exited=exited)

    def _lost(self) -> None:
        """It died by itself; its sessions died with it."""
        self._forget()
        for future in self._starting.values():
            if not future.done():
                future.set_exception(SandboxFailure("the sandbox's zygote died"))
        for exited in self._running.values():
            if not exited.done():
                exited.set_result(-signal.SIGKILL)

    def _forget(self) -> None:
        self.alive = False
        self.loop.remove_reader(self.control)
        self.control.close()

    def _last_words(self) -> str:
        lines = os.pread(self._errors, 1 << 16, 0).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    def _pids(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]


def _allow_many_descriptors() -> None:
    """A session costs its host three; the usual limit of 1024 would end hundreds of them. What is hard stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MANY_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MANY_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _library_path() -> dict[str, str]:
    """Some interpreters do not find their own library without it."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _discard(future: "asyncio.Future[SessionHandle]") -> None:
    """Nobody waits for this session any more."""
    if not future.cancelled() and future.exception() is None:
        _end(future.result())


def _end(started: SessionHandle) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(started.pidfd, signal.SIGKILL)
    os.close(started.pidfd)
