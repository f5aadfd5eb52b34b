"""Other people's packages run in a process of their own, one a package, started when first needed.

There they can hang, crash, eat memory, print, draw from the global random streams and iterate over sets of strings,
and the run goes on: whatever they do wrong is an EnvironmentFailure of the episode in which they do it, and equal seeds
give equal episodes.
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

WORKER = "from turnwise.envs.adapters.worker import main; main()"
START_S = 180.0
"""For the first answer, which waits for the package's import."""
MAX_REPLY = 2**20
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "NLTK_DATA")
"""Of this process's environment: keys and tokens are not for packages that read text of a model."""


class WorkerProcess:
    """The worker of one package. Not shared with a fork of this process."""

    def __init__(self, place: str) -> None:
        self.owner = os.getpid()
        self.forgotten: deque[int] = deque()
        self._numbers = count()
        self._fresh = True
        self._connection, theirs = multiprocessing.Pipe()
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", WORKER, str(theirs.fileno()), place],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the run, which then lets the worker go
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and not self._connection.closed and self._child.poll() is None

    def next_number(self) -> int:
        return next(self._numbers)

    def ask(self, world: int, method: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One request and its reply; whatever goes wrong with either ends the process."""
        seconds, self._fresh = (START_S if self._fresh else seconds), False
        forget = [self.forgotten.popleft() for _ in range(len(self.forgotten))]
        request = {"world": world, "method": method, "arguments": arguments, "seconds": seconds, "forget": forget}
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            if not self._connection.poll(seconds):
                raise EnvironmentFailure(f"{method} took longer than {seconds:g} s")
            return _parsed(self._connection)
        except (EOFError, OSError, ValueError) as error:
            self.end()
            raise EnvironmentFailure(
                f"{method}: no reply from its process, which ended with {self._child.returncode} ({error!r})"
            ) from error
        except BaseException:  # a reply that nobody has read would be taken for the next one
            self.end()
            raise

    def end(self) -> None:
        self._connection.close()
        if self.owner == os.getpid():
            self._child.kill()
            self._child.wait()


def _environment() -> dict[str, str]:
    """What the worker needs to import what can be imported here, and to iterate over sets in one order everywhere."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # noqa: PTH100
    return kept | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"}


def _parsed(connection: Connection) -> dict[str, Any]:
    reply = json.loads(connection.recv_bytes(MAX_REPLY))
    if not isinstance(reply, dict) or len(reply) != 1:
        raise ValueError("no reply of a worker")
    return reply


_processes: dict[str, WorkerProcess] = {}
_lock = RLock()


def _process_for(place: str) -> WorkerProcess:
    found = _processes.get(place)
    if found is None or not found.alive:
        found = _processes[place] = WorkerProcess(place)
    return found


@atexit.register
def end_processes() -> None:
    """Ends all workers of this process; the next world starts a fresh one."""
    with _lock:
        for process in _processes.values():
            process.end()
        _processes.clear()


class _WorkerSlot:
    """Where a world is: a process, and its number there."""

    def __init__(self, place: str) -> None:
        self.process = _process_for(place)
        self.number = self.process.next_number()

    def leave(self) -> None:
        self.process.forgotten.append(self.number)


class RemoteEnv:
    """A `WorkerEnv` in the process of its package. `about` is what it said of itself when it was made.

    The call during which the process ends has failed. Other worlds of that process are not to blame: each is made anew
    in a fresh process when it is next called, by the same calls, which give the same episode.
    """

    def __init__(self, place: str, settings: dict[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._place, self._name = place, place.partition(":")[2]
        self._calls: list[tuple[str, dict[str, Any], bytes]] = []
        """All that were answered: method, arguments and a digest of the reply."""
        with _lock:
            self._sit_down()
            self.about = self.call("open", **settings)

    def _sit_down(self) -> None:
        self._seat = _WorkerSlot(self._place)
        self._leave = finalize(self, self._seat.leave)

    def call(self, method: str, **arguments: Any) -> Any:
        """Runs a method there. An illegal action is a ValueError here, as an environment says it."""
        with _lock:
            if not self._seat.process.alive:
                self._restore()
            reply = self._ask(method, arguments)
            self._calls.append((method, arguments, _digest(reply)))
        if "value" in reply:
            return reply["value"]
        if "illegal" in reply:
            raise ValueError(reply["illegal"])
        if "wrong" in reply:
            raise UserError(reply["wrong"])
        raise EnvironmentFailure(f"{self._name}, {method}: {reply.get('failed', 'no reply of a worker')}")

    def _ask(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._seat.process.ask(self._seat.number, method, arguments, self._timeout_s)

    def _restore(self) -> None:
        """An InfrastructureFailure where that does not work: the episode is run again, with the same luck."""
        self._leave.detach()
        self._sit_down()
        try:
            for method, arguments, before in self._calls:
                if _digest(self._ask(method, arguments)) != before:
                    raise InfrastructureFailure(
                        f"{self._name}: its process ended by another episode, and {method} went otherwise in a new one"
                    )
        except EnvironmentFailure as failure:
            raise InfrastructureFailure(
                f"{self._name}: its process ended by another episode, and could not be replaced: {failure}"
            ) from failure


def _digest(reply: dict[str, Any]) -> bytes:
    return hashlib.blake2b(json.dumps(reply, sort_keys=True).encode(), digest_size=16).digest()
