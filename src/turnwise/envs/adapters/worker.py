"""The worker process: holds the environments of one package and answers one JSON request at a time.

Started by `envs.adapters.process` with a file descriptor and MODULE:Class. It exits when its connection closes.
"""

import json
import os
import random
import resource
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, TypedDict

MEMORY_LIMIT = 4 * 2**30
"""Bytes of address space, so that a hostile action cannot exhaust the machine's memory."""
GRACE_S = 5.0
"""Seconds after a call's time limit at which the worker ends itself, in case the run is gone."""
MAX_REASON_CHARS = 500
SEED_LIMIT = 2**32
"""Seeds of numpy's global stream are below this."""


class IllegalAction(Exception):
    """The action is not legal. The state has not changed."""


class InvalidSetting(Exception):
    """A setting of the user is invalid. The message is one line that says how to fix it.

    `param`: the parameter that the message is about, empty for all of them; None if it is about none.
    """

    def __init__(self, problem: str, *, param: str | None = None) -> None:
        super().__init__(problem)
        self.param = param


class WorkerStep(TypedDict, total=False):
    """Observation, reward and status after an action."""

    text: str
    image: str
    """PNG file in base64, if the observation has an image."""
    reward: float
    over: bool
    success: bool
    moves: Sequence[str]
    """Legal actions in this state, if the package lists them."""
    player: int
    """The player who acts, in games whose players are all agents."""
    texts: Mapping[int, str]
    """Observations by player."""
    rewards: Sequence[float]
    """Rewards of all players, at the end of a game."""


class WorkerEnv(ABC):
    """One episode of a package's environment. Subclasses take settings in `__init__` and raise InvalidSetting there.

    Packages draw from the global streams of `random` and numpy. Each environment has its own state of these, which is
    restored for each call, so that episodes do not influence each other.
    """

    _streams: tuple[Any, Any] | None = None

    def about(self) -> dict[str, Any]:
        """Return what the prompt needs before the first episode starts. Equal for equal settings."""
        return {}

    @abstractmethod
    def reset(self, seed: int) -> WorkerStep:
        """Return the start state, a function of the seed and the settings."""

    def reseed(self, seed: int) -> None:  # noqa: B027  most packages have no streams of their own
        """Reseed random streams that the package keeps itself, so that members of a group differ after the start."""

    @abstractmethod
    def step(self, action: str) -> WorkerStep:
        """Run one action, or raise IllegalAction."""

    def solve(self) -> list[str] | None:
        """Return actions from here to success, if the package knows them."""
        return None

    def begin(self, start_seed: int, later_seed: int) -> WorkerStep:
        _seed_streams(start_seed)
        first = self.reset(start_seed)
        _seed_streams(later_seed)
        self.reseed(later_seed)
        return first

    @contextmanager
    def use_streams(self) -> Iterator[None]:
        """Use this environment's random streams as the global ones."""
        if self._streams is not None:
            _set_streams(self._streams)
        try:
            yield
        finally:
            self._streams = _get_streams()


@contextmanager
def isolated_streams(seed: int) -> Iterator[None]:
    """Seed the global streams for a trial and restore them afterwards."""
    streams = _get_streams()
    _seed_streams(seed)
    try:
        yield
    finally:
        _set_streams(streams)


def _numpy_random() -> Any:
    """Return numpy's global stream if a package has imported numpy."""
    return sys.modules["numpy"].random if "numpy" in sys.modules else None


def _seed_streams(seed: int) -> None:
    random.seed(seed)
    if (stream := _numpy_random()) is not None:
        stream.seed(seed % SEED_LIMIT)


def _get_streams() -> tuple[Any, Any]:
    stream = _numpy_random()
    return random.getstate(), None if stream is None else stream.get_state()


def _set_streams(streams: tuple[Any, Any]) -> None:
    random.setstate(streams[0])
    if streams[1] is not None:
        _numpy_random().set_state(streams[1])


WorkerEnvs = dict[int, WorkerEnv]


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    with suppress(ValueError, OSError):  # not every system has it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    _silence()
    envs: WorkerEnvs = {}
    with suppress(EOFError, OSError):
        while True:
            request = json.loads(connection.recv_bytes())
            signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_S)
            reply = _reply(sys.argv[2], request, envs)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(reply)


def _silence() -> None:
    """Discard what packages print. Errors come back in replies."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _reply(class_path: str, request: dict[str, Any], envs: WorkerEnvs) -> bytes:
    """Return the value of a call, or one of three errors: illegal, invalid_setting, failed."""
    for env_id in request["released"]:
        envs.pop(env_id, None)
    try:
        return json.dumps({"value": _run(class_path, request, envs)}).encode()
    except IllegalAction as error:
        reply: dict[str, Any] = {"illegal": _reason(error)}
    except InvalidSetting as error:
        reply = {"invalid_setting": [error.param, _reason(error)]}
    except (Exception, SystemExit) as error:
        reply = {"failed": f"{type(error).__name__}: {_reason(error)}"}
    return json.dumps(reply).encode()


def _run(class_path: str, request: dict[str, Any], envs: WorkerEnvs) -> Any:
    env_id, arguments = request["env"], request["arguments"]
    if request["method"] == "open":
        envs[env_id] = _load_class(class_path)(**arguments)
        return envs[env_id].about()
    env = envs[env_id]
    with env.use_streams():
        return getattr(env, request["method"])(**arguments)


def _load_class(class_path: str) -> type[WorkerEnv]:
    """Import the package. A broken installation is the user's to fix, not an episode's failure."""
    module, _, name = class_path.partition(":")
    try:
        env_class: type[WorkerEnv] = getattr(import_module(module), name)
    except (ImportError, SyntaxError, OSError) as error:
        raise InvalidSetting(
            f"A package cannot be imported: install it again ({type(error).__name__}: {error})."
        ) from error
    return env_class


def _reason(error: BaseException) -> str:
    """Return the message in one line of bounded length: some packages put whole pages into theirs."""
    return " ".join(str(error).split())[:MAX_REASON_CHARS]
