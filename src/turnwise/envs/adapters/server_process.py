"""Start the server of an environment in a process of its own, on a free port, and end it with this process."""

import atexit
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import IO

import httpx2

from turnwise.core.errors import UserError
from turnwise.envs.adapters.process import PASSED_ON
from turnwise.envs.param_setting import param_setting
from turnwise.network.ports import listen
from turnwise.text.truncation import shorten

START_S = 120.0
"""Time in which the server must answer, which includes the import of the package."""
POLL_S = 0.1
LAST_CHARS = 500
KEY_VARIABLE = "TURNWISE_SERVER_KEY"
"""Variable in which a server finds the key that its clients must send. OpenEnv's servers read none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """Command that starts a server. Equal commands share one server."""

    name: str
    """Name of the environment, for errors."""
    arguments: tuple[str, ...]
    """Program and arguments; the port is added."""
    folder: str | None = None
    """Folder to start in. Default: this process's."""
    variables: tuple[str, ...] = ()
    """Environment variables that it may read, besides PATH, HOME and the like."""


class ServerProcess:
    """A running server."""

    def __init__(self, command: ServerCommand) -> None:
        self.owner = os.getpid()
        self.key = secrets.token_hex(16)
        self._name = command.name
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with listen("127.0.0.1", 0) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._child = subprocess.Popen(
            [*command.arguments, str(port)],
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=self._environment(command.variables),
            start_new_session=True,  # Ctrl-C is for the run, which then ends the server
        )

    def _environment(self, variables: tuple[str, ...]) -> Mapping[str, str]:
        passed = {name: os.environ[name] for name in (*PASSED_ON, *variables) if name in os.environ}
        return {**passed, KEY_VARIABLE: self.key}

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and self._child.poll() is None

    def wait(self) -> None:
        """Wait until the server answers. Raises UserError with the end of its output."""
        deadline = time.monotonic() + START_S
        while self.alive and time.monotonic() < deadline:
            with suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/health", timeout=POLL_S * 10, trust_env=False).status_code == 200:
                    return
            time.sleep(POLL_S)
        problem = "does not answer" if self.alive else "ended"
        self.end()
        raise UserError(
            f"The server of {self._name} {problem}: {self._last_output()}. If its requirements are in another "
            f"Python environment, name that Python with {param_setting('python')}."
        )

    def _last_output(self) -> str:
        self._output.seek(0)
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
        return shorten(lines[-1] if lines else "no output", LAST_CHARS).rstrip(".")

    def end(self) -> None:
        if self.owner == os.getpid():
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


def python_of(package: str, python: str | None) -> str:
    """Return the interpreter of the package: the chosen one, that of its folder's .venv, or this one."""
    if python is not None:
        if not Path(python).is_file():
            raise UserError(f"{param_setting('python')}: {python} does not exist.")
        return str(Path(python).absolute())
    own = Path(package).absolute() / ".venv" / "bin" / "python"
    return str(own) if own.is_file() else sys.executable


_servers: dict[ServerCommand, ServerProcess] = {}
_lock = RLock()


def running_server(command: ServerCommand) -> ServerProcess:
    """Return the command's server, which is started if it does not run."""
    with _lock:
        server = _servers.get(command)
        if server is None or not server.alive:
            server = _servers[command] = ServerProcess(command)
            server.wait()
        return server


@atexit.register
def end_servers() -> None:
    """End all servers that this process started."""
    with _lock:
        for server in _servers.values():
            server.end()
        _servers.clear()
