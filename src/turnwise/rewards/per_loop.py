"""Objects that belong to one event loop, such as locks and connections."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Holds the object of the running event loop, and makes a new one when another loop runs."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._value: T | None = None

    def get(self) -> T:
        loop = asyncio.get_running_loop()
        if self._value is None or loop is not self._loop:
            self._loop, self._value = loop, self._make()
        return self._value

    def take(self) -> T | None:
        """Return the running loop's object, if there is one, and forget it."""
        value = self._value if asyncio.get_running_loop() is self._loop else None
        self._loop = self._value = None
        return value
