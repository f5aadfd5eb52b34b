"""An event loop whose clock moves only while it has nothing else to do: time-outs are exact and cost no time.

Whatever runs between two waits takes no time by this clock, however busy the machine is. A wait that nothing can end
is an error at once instead of a hang.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For code that waits for coroutines and for threads of `run_in_executor`, and for nothing outside the process."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self.now = 0.0
        self.in_threads = 0

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self.in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: setattr(self, "in_threads", self.in_threads - 1))
        return future


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.loop.in_threads:
            return super().select(timeout)  # a thread takes the time that it takes
        if events := super().select(0):
            return events
        assert timeout is not None, "all tasks wait and nothing can wake them"
        self.loop.now += timeout
        return []


def follow_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make turnwise's own clocks of blocking code read the loop's clock."""
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    for module in ("concurrency.blocking", "concurrency.loop_clock", "rollout.failures"):
        monkeypatch.setattr(f"turnwise.{module}.time", clock)


def block(seconds: float) -> None:
    """Hold the running loop, as `time.sleep` would in real time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.now += seconds


def run_in_virtual_time(work: Coroutine[Any, Any, Result]) -> Result:
    """Like `asyncio.run`, with virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
