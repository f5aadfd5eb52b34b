"""Interrupt code that blocks the event loop, which asyncio's time-outs cannot do.

    with allow_interrupts():
        await interruptible(env.step(action), seconds=600, who="the environment")

Ctrl-C interrupts such code too, after STOP_S, where asyncio alone would wait for it. It uses SIGALRM, so it works only
in the main thread and while no other code uses that timer. Code that never returns to
the Python interpreter (one long call into C) is not interrupted. In other threads the time that code blocks is only
counted, and a process that can be replaced exits instead (`exit_if_blocked`).
"""

import asyncio
import faulthandler
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

from turnwise.concurrency.loop_clock import count_blocked

Result = TypeVar("Result")

GRACE_S = 10.0
"""Least time for clean-up between an interrupt and the next one; a tenth of the limit if that is longer."""

STOP_S = 5.0
"""Seconds that code may block after Ctrl-C."""

INTERVAL_S = 86_399.0
"""Interval of our timer. It distinguishes our timer from one set by user code."""

blocking_limit: ContextVar[float] = ContextVar("blocking_limit", default=math.inf)
"""Seconds that user code may block: set per episode, read in the asyncio tasks that its environment starts."""


class EventLoopBlocked(TimeoutError):
    """User code blocked the event loop for too long and was interrupted."""


class _Interrupt(BaseException):
    """Raised by the signal handler inside blocking code, whose `except Exception` must not catch it."""


def _is_stale(handler: Any) -> bool:
    """Return whether asyncio.run set this handler and its main task has ended: it can no longer restore the default.

    Tasks that are left over are cancelled, and stop using the alarm, after asyncio.run has looked for its handler.
    """
    task = getattr(handler, "keywords", {}).get("main_task")
    return isinstance(task, asyncio.Task) and task.done()


class _Alarm:
    """The process's single timer. User code may take it over and leave it in any state, so nothing is assumed."""

    def __init__(self) -> None:
        self._users = 0
        self._handler: Any = None
        self._sigint: Any = None
        self.stopping = False
        """Whether Ctrl-C was pressed."""
        self._fires_at = 0.0
        self.deadline = math.inf
        """Deadline of the running code; infinity if it has none."""
        self.grace_s = GRACE_S
        """Time for clean-up after an interrupt."""

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
            return False  # used by other code
        self._handler = signal.signal(signal.SIGALRM, self._fire)
        self._sigint, self.stopping = signal.getsignal(signal.SIGINT), False
        if callable(self._sigint) and self._sigint is not signal.default_int_handler:  # that one raises at once
            signal.signal(signal.SIGINT, self._stop)
        return True

    def _uninstall(self) -> None:
        handled = self._is_handler()  # else user code has taken it over
        if handled or self._is_running():
            signal.setitimer(signal.ITIMER_REAL, 0)
        if handled:
            signal.signal(signal.SIGALRM, self._handler or signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) == self._stop:
            signal.signal(signal.SIGINT, signal.default_int_handler if _is_stale(self._sigint) else self._sigint)

    def _is_handler(self) -> bool:
        return signal.getsignal(signal.SIGALRM) == self._fire

    def _is_running(self) -> bool:
        """Return True if our timer is running: user code may have stopped it or set its own."""
        return signal.getitimer(signal.ITIMER_REAL)[1] == INTERVAL_S

    def arm(self, deadline: float, now: float) -> None:
        """Ensure a signal at or before the deadline, unless user code has its own handler and timer running.

        A handler that user code left behind without a timer is replaced, and restored at the end.
        """
        self.deadline = deadline
        if not self._users or deadline == math.inf:
            return
        running = self._is_running()
        if running and now < self._fires_at <= deadline:
            return  # checking the handler as well would cost ten times as much
        if not self._is_handler():
            if not running and signal.getitimer(signal.ITIMER_REAL)[0]:
                return  # used by other code
            self._handler = signal.signal(signal.SIGALRM, self._fire)
        self._set(deadline - now, now)

    def _set(self, seconds: float, now: float) -> None:
        seconds = max(seconds, 1e-3)  # 0 would disable the timer
        self._fires_at = now + seconds
        signal.setitimer(signal.ITIMER_REAL, seconds, INTERVAL_S)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Let asyncio cancel its main task, and interrupt the code that blocks the event loop meanwhile."""
        self.stopping = True
        self._sigint(number, frame)
        if self.deadline < math.inf:
            now = time.monotonic()
            self.arm(min(self.deadline, now + STOP_S), now)

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
    """Context in which `interruptible` works. It installs the SIGALRM handler; the last one to exit restores it."""
    return _alarm.installed()


async def interruptible(awaitable: Awaitable[Result], seconds: float, who: str) -> Result:
    """Await; raise `EventLoopBlocked` if it blocks the event loop for more than `seconds` without suspending."""
    if seconds == math.inf:
        return await awaitable
    return await (_InterruptibleStretches if _in_main_thread() else _Stretches)(awaitable, seconds, who)


class _Thread(threading.local):
    in_stretch = False
    exits = False


_thread = _Thread()


def exit_if_blocked() -> None:
    """Let this process exit if `interruptible` code of this thread blocks for longer than it may, also inside C code.

    For a thread other than the main one, in a process that is replaced when it ends.
    """
    _thread.exits = True


class _Stretches(Generic[Result]):
    """Runs an awaitable from one suspension to the next, and counts the time of each stretch.

    The time of other tasks that run while it is suspended does not count.
    """

    def __init__(self, awaitable: Awaitable[Result], seconds: float, who: str) -> None:
        self._awaitable, self._seconds, self._who = awaitable, seconds, who

    def __await__(self) -> Generator[Any, Any, Result]:
        steps = _wait_for(self._awaitable)
        resume: Callable[..., Any] = steps.send
        arguments: tuple[Any, ...] = (None,)
        while True:
            try:
                waited_for = self._run(resume, arguments)
            except StopIteration as end:
                return end.value
            try:
                resume, arguments = steps.send, ((yield waited_for),)
            except BaseException as error:
                resume, arguments = steps.throw, (error,)

    def _run(self, resume: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if _thread.in_stretch:  # part of an outer stretch, which counts it
            return resume(*arguments)
        began, _thread.in_stretch = time.monotonic(), True
        if _thread.exits:
            faulthandler.dump_traceback_later(self._seconds + GRACE_S, exit=True)
        try:
            return resume(*arguments)
        finally:
            if _thread.exits:
                faulthandler.cancel_dump_traceback_later()
            _thread.in_stretch = False
            count_blocked(time.monotonic() - began, by_current=True)


class _InterruptibleStretches(_Stretches[Result]):
    """Stretches of the main thread, each with its own deadline."""

    def _run(self, resume: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        outer, outer_grace_s, now = _alarm.deadline, _alarm.grace_s, time.monotonic()
        try:
            try:
                _alarm.grace_s = max(GRACE_S, self._seconds / 10)
                _alarm.arm(min(outer, now + (STOP_S if _alarm.stopping else self._seconds)), now)
                return resume(*arguments)
            finally:
                _alarm.deadline, _alarm.grace_s = outer, outer_grace_s
                if outer == math.inf:  # else it is part of an outer stretch, which counts it
                    count_blocked(time.monotonic() - now, by_current=True)
        except _Interrupt as interrupt:
            now = time.monotonic()
            if outer <= now:
                raise  # the outer stretch ran out of time
            _alarm.arm(outer, now)
            if _alarm.stopping:
                raise asyncio.CancelledError(f"{self._who} was interrupted by a signal") from interrupt
            raise EventLoopBlocked(
                f"{self._who} ran for {self._seconds:.3g} s without a pause{_location(interrupt)}"
            ) from interrupt


async def _wait_for(awaitable: Awaitable[Result]) -> Result:
    """A coroutine has `send` and `throw`; the iterator that `__await__` returns need not."""
    return await awaitable


def _location(interrupt: _Interrupt) -> str:
    """Return where the signal interrupted the code: the frame before the handler's own."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(interrupt.__traceback__)][:-1]
    return f", at {Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
