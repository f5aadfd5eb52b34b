"""Objects that belong to one event loop, such as locks and connections."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Holds the object of the running event loop, and makes a new one when another loop runs.

    `make` may also reset state of its owner that belongs to the loop, and return None.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._value: T | None = None

    def get(self) -> T:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._value = self._make()  # before the loop counts as entered: it may raise
            self._loop = loop
        return cast(T, self._value)

    def take(self) -> T | None:
        """Return the running loop's object, if there is one, and forget it."""
        value = self._value if asyncio.get_running_loop() is self._loop else None
        self._loop = self._value = None
        return value
