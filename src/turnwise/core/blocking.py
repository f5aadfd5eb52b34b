"""Interrupt code that blocks the event loop, which asyncio's own time-outs cannot reach.

    with allow_interrupts():
        await interruptible(env.step(action), seconds=600, who="the environment")

SIGALRM does it, so it works in the main thread only, and only while nobody else uses that timer. Elsewhere code that
blocks is not interrupted. Code that never returns to the Python interpreter (one long call into C) is not either.
"""

import math
import signal
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

from turnwise.core.loop_clock import count_blocked

Found = TypeVar("Found")

GRACE_S = 10.0
"""Least time that interrupted code has for its clean-up before the next interrupt; a tenth of its limit, if longer."""

INTERVAL_S = 86_399.0
"""Interval of the timer. It tells our timer from one that user code has set, which hardly has the same."""

blocking_limit: ContextVar[float] = ContextVar("blocking_limit", default=math.inf)
"""Seconds that code of the user's may block: set for an episode, read in the tasks that its environment starts."""


class EventLoopBlocked(TimeoutError):
    """Code of the user's blocked the event loop for too long, and was interrupted."""


class _Interrupt(BaseException):
    """Raised by the signal inside code that blocks. `except Exception` there must not catch it."""


class _Alarm:
    """One timer for all, which user code may take over and leave in any state: nothing about it is assumed."""

    def __init__(self) -> None:
        self._users = 0
        self._handler: Any = None
        self._fires_at = 0.0
        self.deadline = math.inf
        """Deadline of the code that now runs; infinity where there is none."""
        self.grace_s = GRACE_S
        """Time that this code has for its clean-up after an interrupt."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        if not _in_main_thread() or (not self._users and not self._install()):
            yield
            return
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._uninstall()

    def _install(self) -> bool:
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            return False  # somebody else's
        self._handler = signal.signal(signal.SIGALRM, self._fire)
        return True

    def _uninstall(self) -> None:
        handled = self._is_handler()  # else user code has taken it over
        if handled or self._is_running():
            signal.setitimer(signal.ITIMER_REAL, 0)
        if handled:
            signal.signal(signal.SIGALRM, self._handler or signal.SIG_DFL)

    def _is_handler(self) -> bool:
        return signal.getsignal(signal.SIGALRM) == self._fire

    def _is_running(self) -> bool:
        """Whether the timer runs as it was set here: user code may have stopped it or set its own."""
        return signal.getitimer(signal.ITIMER_REAL)[1] == INTERVAL_S

    def arm(self, deadline: float, now: float) -> None:
        """Make sure of a signal at the deadline or before, unless user code has its own handler and timer running.

        A handler that user code left behind without a timer is replaced, and given back at the end.
        """
        self.deadline = deadline
        if not self._users or deadline == math.inf:
            return
        running = self._is_running()
        if running and now < self._fires_at <= deadline:
            return  # without a look at the handler, which costs ten times as much
        if not self._is_handler():
            if not running and signal.getitimer(signal.ITIMER_REAL)[0]:
                return  # somebody else's
            self._handler = signal.signal(signal.SIGALRM, self._fire)
        self._set(deadline - now, now)

    def _set(self, seconds: float, now: float) -> None:
        seconds = max(seconds, 1e-3)  # 0 would switch it off
        self._fires_at = now + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds, INTERVAL_S)

    def _fire(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.deadline == math.inf:
            return
        if now < self.deadline:
            self._set(self.deadline - now, now)
            return
        self.deadline = now + self.grace_s
        self._set(self.grace_s, now)
        raise _Interrupt


_alarm = _Alarm()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def allow_interrupts() -> AbstractContextManager[None]:
    """A context in which `interruptible` works: it holds SIGALRM, and gives it back at the end of the last of them."""
    return _alarm.installed()


async def interruptible(awaitable: Awaitable[Found], seconds: float, who: str) -> Found:
    """Await it; raise `EventLoopBlocked` where one stretch of it holds the event loop for more than `seconds`."""
    if seconds == math.inf or not _in_main_thread():
        return await awaitable
    return await _Stretches(awaitable, seconds, who)


class _Stretches(Generic[Found]):
    """Runs an awaitable from one suspension to the next, each stretch with a deadline of its own.

    While it is suspended, others run, and none of their time is its.
    """

    def __init__(self, awaitable: Awaitable[Found], seconds: float, who: str) -> None:
        self._awaitable, self._seconds, self._who = awaitable, seconds, who

    def __await__(self) -> Generator[Any, Any, Found]:
        steps = _wait_for(self._awaitable)
        resume: Callable[..., Any] = steps.send
        given: tuple[Any, ...] = (None,)
        while True:
            try:
                waited_for = self._run(resume, given)
            except StopIteration as end:
                return end.value
            try:
                resume, given = steps.send, ((yield waited_for),)
            except BaseException as error:
                resume, given = steps.throw, (error,)

    def _run(self, resume: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        outer, outer_grace_s, now = _alarm.deadline, _alarm.grace_s, time.monotonic()
        try:
            try:
                _alarm.grace_s = max(GRACE_S, self._seconds / 10)
                _alarm.arm(min(outer, now + self._seconds), now)
                return resume(*given)
            finally:
                _alarm.deadline, _alarm.grace_s = outer, outer_grace_s
                if outer == math.inf:  # else it is part of a stretch that is counted
                    count_blocked(time.monotonic() - now, own=True)
        except _Interrupt as interrupt:
            now = time.monotonic()
            if outer <= now:
                raise  # the time was that of whoever waits for this one
            _alarm.arm(outer, now)
            raise EventLoopBlocked(
                f"{self._who} ran for {self._seconds:g} s without a pause{_place(interrupt)}"
            ) from interrupt


async def _wait_for(awaitable: Awaitable[Found]) -> Found:
    """A coroutine has `send` and `throw`; the iterator that `__await__` returns need not."""
    return await awaitable


def _place(interrupt: _Interrupt) -> str:
    """Where the code was when the signal came: the frame before the handler's own."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(interrupt.__traceback__)][:-1]
    return f", at {Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
