"""Start the server of an OpenEnv package in a process of its own, on a free port, and end it with this process."""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
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
SERVER_MODULE = "server.app"
"""Module of the application in a package, as OpenEnv's template has it."""
LAST_CHARS = 500
PROGRAM = """
import sys
import uvicorn
uvicorn.run(sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


class PackageServer:
    """A running server of a package."""

    def __init__(self, package: str, python: str) -> None:
        self.owner = os.getpid()
        self._package = package
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with listen("127.0.0.1", 0) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        folder, application = locate(package)
        self._child = subprocess.Popen(
            [python, "-c", PROGRAM, application, str(port)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
            start_new_session=True,  # Ctrl-C is for the run, which then ends the server
        )

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
            f"The server of {self._package} {problem}: {self._last_output()}. If its requirements are in another "
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


def locate(package: str) -> tuple[str | None, str]:
    """Return the folder to start in and uvicorn's name of the application, of a folder or a module."""
    folder = Path(package)
    if (folder / "openenv.yaml").is_file():
        return str(folder.absolute()), f"{SERVER_MODULE}:app"
    if folder.is_dir():
        raise UserError(f"{package} has no openenv.yaml: name the folder of an OpenEnv environment, or its module.")
    if not all(part.isidentifier() for part in package.split(".")):
        raise UserError(
            f"{param_setting('server')} {package!r} is neither a URL (http://localhost:8000), a folder with an "
            "openenv.yaml, nor the name of a Python module."
        )
    return None, f"{package}.{SERVER_MODULE}:app"


def python_of(package: str, python: str | None) -> str:
    """Return the interpreter of the package: the chosen one, that of its folder's .venv, or this one."""
    if python is not None:
        if not Path(python).is_file():
            raise UserError(f"{param_setting('python')}: {python} does not exist.")
        return str(Path(python).absolute())
    own = Path(package).absolute() / ".venv" / "bin" / "python"
    return str(own) if own.is_file() else sys.executable


_servers: dict[tuple[str, str], PackageServer] = {}
_lock = RLock()


def package_url(package: str, python: str | None) -> str:
    """Return the URL of the package's server, which is started if it does not run."""
    with _lock:
        key = (package, python_of(package, python))
        server = _servers.get(key)
        if server is None or not server.alive:
            server = _servers[key] = PackageServer(*key)
            server.wait()
        return server.url


@atexit.register
def end_servers() -> None:
    """End all servers that this process started."""
    with _lock:
        for server in _servers.values():
            server.end()
        _servers.clear()
