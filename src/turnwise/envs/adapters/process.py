"""Worker processes for third-party environment packages, one per package, started when first needed.

A package may hang, crash, exhaust memory, print, draw from the global random streams and iterate over sets of strings
without harming the run: each fault is an EnvironmentFailure of the episode in which it happens, and equal seeds give
equal episodes.
"""

import atexit
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections import deque
from itertools import count
from multiprocessing.connection import Connection
from threading import RLock
from typing import Any
from weakref import finalize

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.envs.param_setting import param_setting

WORKER = "from turnwise.envs.adapters.worker import main; main()"
START_S = 180.0
"""Seconds for the first reply, which includes the import of the package."""
MAX_REPLY_BYTES = 2**22
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "NLTK_DATA")
"""Environment variables of the worker. API keys stay out: packages read text that a model wrote."""


class WorkerProcess:
    """The worker of one package. A fork of this process must not use it."""

    def __init__(self, class_path: str) -> None:
        self.owner = os.getpid()
        self.released: deque[int] = deque()
        """Environments that the worker can forget."""
        self._ids = count()
        self._is_fresh = True
        self._connection, theirs = multiprocessing.Pipe()
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER, str(theirs.fileno()), class_path],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_worker_environment(),
            start_new_session=True,  # Ctrl-C is for the run, which then ends the worker
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and not self._connection.closed and self._child.poll() is None

    def next_id(self) -> int:
        return next(self._ids)

    def ask(self, env_id: int, method: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return the reply. Any failure ends the process."""
        seconds, self._is_fresh = (START_S if self._is_fresh else seconds), False
        released = [self.released.popleft() for _ in range(len(self.released))]
        request = {"env": env_id, "method": method, "arguments": arguments, "seconds": seconds, "released": released}
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            if not self._connection.poll(seconds):
                raise EnvironmentFailure(f"{method} took longer than {seconds:g} s")
            return _receive(self._connection)
        except (EOFError, OSError, ValueError) as error:
            self.end()
            raise EnvironmentFailure(
                f"{method}: no reply from its process, which ended with {self._child.returncode} ({error!r})"
            ) from error
        except BaseException:  # an unread reply would be taken for the next one
            self.end()
            raise

    def end(self) -> None:
        self._connection.close()
        if self.owner == os.getpid():
            self._child.kill()
            self._child.wait()


def _worker_environment() -> dict[str, str]:
    """Return variables with which the worker imports the same modules and iterates over sets in a fixed order."""
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # noqa: PTH100
    return kept | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"}


def _receive(connection: Connection) -> dict[str, Any]:
    reply = json.loads(connection.recv_bytes(MAX_REPLY_BYTES))
    if not isinstance(reply, dict) or len(reply) != 1:
        raise ValueError("not a worker's reply")
    return reply


_processes: dict[str, WorkerProcess] = {}
_lock = RLock()


def _process_for(class_path: str) -> WorkerProcess:
    process = _processes.get(class_path)
    if process is None or not process.alive:
        process = _processes[class_path] = WorkerProcess(class_path)
    return process


@atexit.register
def end_processes() -> None:
    """End all workers of this process. The next environment starts a fresh one."""
    with _lock:
        for process in _processes.values():
            process.end()
        _processes.clear()


class _WorkerSlot:
    """A worker process and the id of an environment in it."""

    def __init__(self, class_path: str) -> None:
        self.process = _process_for(class_path)
        self.env_id = self.process.next_id()

    def release(self) -> None:
        self.process.released.append(self.env_id)


class RemoteEnv:
    """A `WorkerEnv` in its package's process. `about` is the reply to its construction.

    If the process dies, the call that was running fails. Other environments of that process are recreated in a fresh
    one at their next call, by repeating their calls, which give the same episode.
    """

    def __init__(self, class_path: str, settings: dict[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._class_path, self._name = class_path, class_path.partition(":")[2]
        self._calls: list[tuple[str, dict[str, Any], bytes]] = []
        """All answered calls: method, arguments and a digest of the reply."""
        with _lock:
            self._take_slot()
            self.about = self.call("open", **settings)

    def _take_slot(self) -> None:
        self._slot = _WorkerSlot(self._class_path)
        self._release = finalize(self, self._slot.release)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the remote environment. Raises ValueError for an illegal action, as environments do."""
        with _lock:
            if not self._slot.process.alive:
                self._restore()
            reply = self._ask(method, arguments)
            self._calls.append((method, arguments, _digest(reply)))
        if "value" in reply:
            return reply["value"]
        if "illegal" in reply:
            raise ValueError(reply["illegal"])
        if "invalid_setting" in reply:
            param, problem = reply["invalid_setting"]
            raise UserError(problem if param is None else f"{param_setting(param)}: {problem}")
        raise EnvironmentFailure(f"{self._name}, {method}: {reply.get('failed', 'not a reply of a worker')}")

    def _ask(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._slot.process.ask(self._slot.env_id, method, arguments, self._timeout_s)

    def _restore(self) -> None:
        """Recreate the episode in a fresh process. If that fails, the episode is retried with the same randomness."""
        self._release.detach()
        self._take_slot()
        try:
            for method, arguments, before in self._calls:
                if _digest(self._ask(method, arguments)) != before:
                    raise InfrastructureFailure(
                        f"{self._name}: another episode ended its process, and {method} had another result in a new one"
                    )
        except EnvironmentFailure as failure:
            raise InfrastructureFailure(
                f"{self._name}: another episode ended its process, and a new one failed: {failure}"
            ) from failure


def _digest(reply: dict[str, Any]) -> bytes:
    return hashlib.blake2b(json.dumps(reply, sort_keys=True).encode(), digest_size=16).digest()
