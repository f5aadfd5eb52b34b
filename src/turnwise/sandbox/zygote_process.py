"""The host's side of a zygote: start the process, request sessions, receive their exits."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.files.open_files import raise_open_file_limit
from turnwise.sandbox.processes import descendants, pid_of_pidfd, process_usage
from turnwise.sandbox.protocol import CONTROL, ZygoteConfig, receive
from turnwise.sandbox.python_install import PythonInstall, python_executable
from turnwise.sandbox.scratch_folders import create_base, remove_abandoned_bases, remove_base
from turnwise.sandbox.types import SandboxFailure, SandboxLimits, Tier

READY_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 20.0
"""Longer than any of our own steps takes on a busy machine."""
MAX_DESCRIPTORS = 1 << 16
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
"""Whole environment of a zygote: variables cleared later would stay readable on the stack. The hash seed is fixed
because a fork cannot change it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionHandle:
    """A started session's process."""

    pidfd: int
    pid: int
    scratch: str
    exited: "asyncio.Future[int]"
    """Exit code, negative for a signal."""


class ZygoteStartError(Exception):
    """The zygote could not start. The message names the step that failed."""


class ZygoteProcess:
    """Handle of a zygote. Call `start` first; all methods run in one event loop."""

    def __init__(self, tier: Tier, limits: SandboxLimits, python: PythonInstall) -> None:
        self.tier = tier
        self.limits = limits
        self.python = python
        self.alive = False
        self.packages: Mapping[str, str] = {}
        self.jail = ""
        self.base_bytes = 0
        self.process: subprocess.Popen[bytes]
        self._errors = -1
        self._num_started = 0
        self._starting: dict[int, asyncio.Future[SessionHandle]] = {}
        self._running: dict[int, asyncio.Future[int]] = {}
        self._scratch: tuple[str, int] | None = None

    async def start(self) -> None:
        """Start the process and wait until it is ready. On failure or cancellation nothing of it stays."""
        self.loop = asyncio.get_running_loop()
        raise_open_file_limit(MAX_DESCRIPTORS)
        if self.tier != "namespaces":
            remove_abandoned_bases()
            self._scratch = create_base()
        self._spawn()
        try:
            ready = await asyncio.wait_for(self._first_message(), READY_TIMEOUT_S)
            if "ready" not in ready:
                raise ZygoteStartError(ready.get("failed") or self._last_error_line())
        except TimeoutError:
            self.kill()
            raise ZygoteStartError(f"it was not ready within {READY_TIMEOUT_S:.0f} s") from None
        except BaseException:
            self.kill()
            raise
        self.packages = ready["ready"]["packages"]
        self.jail = ready["ready"]["jail"]
        self.base_bytes = max(usage.resident_bytes for pid in self._pids() if (usage := process_usage(pid)))
        self.alive = True
        self.loop.add_reader(self.control, self._read_messages)

    async def start_session(self, *, sock: socket.socket, output: int, seed: int) -> SessionHandle:
        """Fork a session that uses copies of both descriptors; the caller closes its own."""
        self._num_started += 1
        number = self._num_started
        future: asyncio.Future[SessionHandle] = self.loop.create_future()
        self._starting[number] = future
        try:
            message = json.dumps({"start": number, "seed": seed}).encode()
            await self._send(message, [sock.fileno(), output])
            return await asyncio.wait_for(asyncio.shield(future), ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise SandboxFailure(
                f"the sandbox's zygote did not start a session within {ANSWER_TIMEOUT_S:.0f} s"
            ) from None
        except asyncio.CancelledError:
            future.add_done_callback(_kill_started)
            raise
        finally:
            if future.done():
                self._starting.pop(number, None)

    async def close(self) -> None:
        """End the zygote and wait until it and all its sessions have exited."""
        if self.alive:
            self._disconnect()
            exited: asyncio.Future[None] = self.loop.create_future()
            pidfd = os.pidfd_open(self.process.pid)
            self.loop.add_reader(pidfd, partial(_resolve, exited))
            try:
                await asyncio.wait_for(exited, ANSWER_TIMEOUT_S)
            except TimeoutError:
                self.process.kill()
            finally:
                self.loop.remove_reader(pidfd)
                os.close(pidfd)
        self.kill()

    def kill(self) -> None:
        """Kill the zygote, and with it every session. Needs no event loop."""
        if self.alive:
            self._disconnect()
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
            python=self.python,
            host_pid=os.getpid(),
            scratch=self._scratch[0] if self._scratch else "",
        )
        self.control.send(config.to_json())

    async def _first_message(self) -> dict[str, Any]:
        try:
            message = await self.loop.sock_recv(self.control, 1 << 16)
        except ConnectionResetError:  # it died before it read its configuration
            return {}
        return json.loads(message) if message else {}

    async def _send(self, message: bytes, descriptors: list[int]) -> None:
        """waits for: space in the control socket. unblocked by: the zygote reading."""
        while True:
            try:
                socket.send_fds(self.control, [message], descriptors)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                self._on_exit()
                raise SandboxFailure(f"the sandbox's zygote has exited: {error.strerror}") from None

    def _read_messages(self) -> None:
        """Handle all messages that have arrived."""
        while self.alive:
            try:
                message, descriptors = receive(self.control)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                self._on_exit()
                return
            self._handle_message(json.loads(message), descriptors)

    def _handle_message(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "exited" in message:
            future = self._running.pop(message["exited"], None)
            if future is not None and not future.done():
                future.set_result(message["exit_code"])
            return
        starting = self._starting.pop(message["started"])
        try:
            session = self._session_handle(message, descriptors)
        except OSError as error:
            if not starting.done():
                problem = message.get("failed") or error.strerror
                starting.set_exception(SandboxFailure(f"the sandbox could not start a session: {problem}"))
            return
        if starting.done():
            _kill(session)
        else:
            starting.set_result(session)

    def _session_handle(self, message: dict[str, Any], descriptors: list[int]) -> SessionHandle:
        """Raises OSError if the session did not start, or no descriptor is free; it then ends with its socket."""
        if not descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        pidfd = descriptors[0]
        try:
            pid = pid_of_pidfd(pidfd)
        except OSError:
            os.close(pidfd)
            raise
        exited: asyncio.Future[int] = self.loop.create_future()
        self._running[message["started"]] = exited
        return SessionHandle(pidfd=pidfd, pid=pid, scratch=message["scratch"], exited=exited)

    def _on_exit(self) -> None:
        """The zygote died, and its sessions with it."""
        self._disconnect()
        for future in self._starting.values():
            if not future.done():
                future.set_exception(SandboxFailure("the sandbox's zygote died"))
        for exited in self._running.values():
            if not exited.done():
                exited.set_result(-signal.SIGKILL)

    def _disconnect(self) -> None:
        self.alive = False
        self.loop.remove_reader(self.control)
        self.control.close()

    def _last_error_line(self) -> str:
        lines = os.pread(self._errors, 1 << 16, 0).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it exited without an error message"

    def _pids(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]


def _library_path() -> dict[str, str]:
    """Some interpreters need it to find their own library."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _kill_started(future: "asyncio.Future[SessionHandle]") -> None:
    """Kill a session whose start was cancelled."""
    if not future.cancelled() and future.exception() is None:
        _kill(future.result())


def _kill(session: SessionHandle) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(session.pidfd, signal.SIGKILL)
    os.close(session.pidfd)
