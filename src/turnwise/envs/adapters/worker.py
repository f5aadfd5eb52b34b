"""The other process: holds the worlds of one package and answers one request at a time, as JSON.

`python -m turnwise.envs.adapters.worker FD MODULE:Class`. It ends when its connection does.
"""

import json
import os
import random
import resource
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, TypedDict

MEMORY = 4 * 2**30
"""Bytes of address space, at most: what a hostile action makes a package allocate does not take the machine down."""
GRACE_S = 5.0
"""A call that outlives its time by this much ends the process, even when nobody is left to end it."""
MAX_REASON = 500


MAX_SEED = 2**32
"""What numpy's global stream takes."""


class IllegalAction(Exception):
    """The agent's action is none, and the state is as it was."""


class InvalidSetting(Exception):
    """What the user gave cannot be played: one line with the mend."""


class WorkerStep(TypedDict, total=False):
    """What the agent sees after an action, and what that was worth."""

    text: str
    reward: float
    over: bool
    success: bool
    moves: Sequence[str]
    """The legal actions of this state, where the package names them."""


class WorkerEnv(ABC):
    """One episode inside a package. A subclass takes its settings in `__init__`, where wrong ones raise WrongSetting.

    Packages draw from the global streams of `random` and numpy: each world has its own, put in place for each call,
    so that what one episode draws depends on no other.
    """

    _streams: tuple[Any, Any] | None = None

    def about(self) -> dict[str, Any]:
        """What the prompt needs to know before the first episode starts: equal for equal settings."""
        return {}

    @abstractmethod
    def reset(self, seed: int) -> WorkerStep:
        """The start state, a function of the seed and the settings."""

    def later(self, seed: int) -> None:  # noqa: B027  most packages keep none
        """Streams that the package keeps itself go on from this seed: members meet luck of their own."""

    @abstractmethod
    def step(self, action: str) -> WorkerStep:
        """Runs one action, or raises IllegalAction."""

    def solve(self) -> list[str] | None:
        """Actions from here to success, where the package knows them."""
        return None

    def begin(self, start: int, luck: int) -> WorkerStep:
        _seed_streams(start)
        scene = self.reset(start)
        _seed_streams(luck)
        self.later(luck)
        return scene

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """With this world's streams as the global ones."""
        if self._streams is not None:
            _set_streams(self._streams)
        try:
            yield
        finally:
            self._streams = _get_streams()


@contextmanager
def isolated_streams(seed: int) -> Iterator[None]:
    """For what is only tried: it neither moves the global streams nor foresees what they will give."""
    streams = _get_streams()
    _seed_streams(seed)
    try:
        yield
    finally:
        _set_streams(streams)


def _numpy_random() -> Any:
    """numpy's global stream, where a package has loaded it."""
    return sys.modules["numpy"].random if "numpy" in sys.modules else None


def _seed_streams(seed: int) -> None:
    random.seed(seed)
    if (stream := _numpy_random()) is not None:
        stream.seed(seed % MAX_SEED)


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
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    _silence()
    worlds: WorkerEnvs = {}
    with suppress(EOFError, OSError):
        while True:
            request = json.loads(connection.recv_bytes())
            signal.setitimer(signal.ITIMER_REAL, request["seconds"] + GRACE_S)
            reply = _reply(sys.argv[2], request, worlds)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(reply)


def _silence() -> None:
    """Packages print; nobody reads it, and what is wrong comes back in replies."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _reply(place: str, request: dict[str, Any], worlds: WorkerEnvs) -> bytes:
    """The value, or which of three things went wrong."""
    for number in request["forget"]:
        worlds.pop(number, None)
    try:
        return json.dumps({"value": _run(place, request, worlds)}).encode()
    except IllegalAction as error:
        reply = {"illegal": _reason(error)}
    except InvalidSetting as error:
        reply = {"wrong": _reason(error)}
    except (Exception, SystemExit) as error:
        reply = {"failed": f"{type(error).__name__}: {_reason(error)}"}
    return json.dumps(reply).encode()


def _run(place: str, request: dict[str, Any], worlds: WorkerEnvs) -> Any:
    number, arguments = request["world"], request["arguments"]
    if request["method"] == "open":
        worlds[number] = _world_class(place)(**arguments)
        return worlds[number].about()
    world = worlds[number]
    with world.in_place():
        return getattr(world, request["method"])(**arguments)


def _world_class(place: str) -> type[WorkerEnv]:
    """Imports the package: one that is installed and broken is the user's to mend, and no episode's failure."""
    module, _, name = place.partition(":")
    try:
        found: type[WorkerEnv] = getattr(import_module(module), name)
    except (ImportError, SyntaxError, OSError) as error:
        raise InvalidSetting(f"a package does not load, install it again: {type(error).__name__}: {error}") from error
    return found


def _reason(error: BaseException) -> str:
    """One line of bounded length: packages put whole pages into their errors."""
    return " ".join(str(error).split())[:MAX_REASON]
