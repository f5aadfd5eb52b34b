"""What belongs to one event loop, such as locks and connections: made anew when another loop runs."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class PerLoop(Generic[Thing]):
    def __init__(self, make: Callable[[], Thing]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thing: Thing | None = None

    def get(self) -> Thing:
        """That of the running loop: one of a loop that has ended serves nobody any more."""
        loop = asyncio.get_running_loop()
        if self._thing is None or loop is not self._loop:
            self._loop, self._thing = loop, self._make()
        return self._thing
