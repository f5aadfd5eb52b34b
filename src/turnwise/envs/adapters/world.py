"""The package's side of an adapter: what runs in the other process. Standard library only, and plain JSON values."""

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

MAX_SEED = 2**32
"""What numpy's global stream takes."""


class IllegalAction(Exception):
    """The agent's action is none, and the state is as it was."""


class WrongSetting(Exception):
    """What the user gave cannot be played: one line with the mend."""


class Scene(TypedDict, total=False):
    """What the agent sees after an action, and what that was worth."""

    text: str
    reward: float
    over: bool
    success: bool
    moves: Sequence[str]
    """The legal actions of this state, where the package names them."""


class World(ABC):
    """One episode inside a package. A subclass takes its settings in `__init__`, where wrong ones raise WrongSetting.

    Packages draw from the global streams of `random` and numpy: each world has its own, put in place for each call,
    so that what one episode draws depends on no other.
    """

    _streams: tuple[Any, Any] | None = None

    def about(self) -> dict[str, Any]:
        """What the prompt needs to know before the first episode starts: equal for equal settings."""
        return {}

    @abstractmethod
    def reset(self, seed: int) -> Scene:
        """The start state, a function of the seed and the settings."""

    def later(self, seed: int) -> None:  # noqa: B027  most packages keep none
        """Streams that the package keeps itself go on from this seed: members meet luck of their own."""

    @abstractmethod
    def step(self, action: str) -> Scene:
        """Runs one action, or raises IllegalAction."""

    def solve(self) -> list[str] | None:
        """Actions from here to success, where the package knows them."""
        return None

    def begin(self, start: int, luck: int) -> Scene:
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
def aside(seed: int) -> Iterator[None]:
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
