"""Time limits of an episode: of the agent's sampling and of its environment. Needs no model."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal, Protocol, TypeVar

from turnwise.concurrency.blocking import EventLoopBlocked, blocking_limit, interruptible
from turnwise.concurrency.call_watch import watch
from turnwise.concurrency.loop_clock import LoopClock, current_clock
from turnwise.core.errors import InfrastructureFailure

Found = TypeVar("Found")

MAX_CHECKS = 100
"""Most checks of the clock within one time limit."""


def timeout_cause(error: TimeoutError) -> str:
    """Return the name of what the episode waited for when time ran out.

    A reward or summary hook that is cancelled adds its name as a note; otherwise it was the environment.
    """
    notes: list[str] = getattr(error.__cause__, "__notes__", [])
    return notes[0] if notes else "the environment"


class Samples(Protocol):
    """A session, of which the clock reads this alone."""

    @property
    def sampling_s(self) -> float: ...


class EpisodeClock:
    """Two clocks with the limit `timeout_s` each: one for the agent's sampling, one for the environment.

    The environment includes its tools and rewards and the summary hook. Both clocks stop while the episode waits for
    others: for the engine's batch, for another episode's code that blocks the event loop, or for the opponent's move.
    """

    def __init__(
        self, session: Samples, timeout_s: float, watched: str = "", *, setting: str = "rollout.timeout_s"
    ) -> None:
        """`watched`: name of the environment, whose calls are logged if they do not return; "" logs none.

        `setting`: name of the limit in errors.
        """
        self._session, self._timeout_s, self._watched, self._setting = session, timeout_s, watched, setting
        self._own = LoopClock()
        self._outside_s = 0.0
        self._outside_since: float | None = None
        self.expired: Literal["agent", "environment"] | None = None
        """The clock that ran out."""

    @property
    def outside_s(self) -> float:
        since = self._outside_since
        return self._outside_s + (0.0 if since is None else self._own.now() - since)

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Raise TimeoutError inside the block when a clock runs out; `expired` says which."""
        token, owner = blocking_limit.set(self._timeout_s), current_clock.set(self._own)
        try:
            async with asyncio.timeout(None) as self._cut:
                self._check_in(self._timeout_s)
                try:
                    yield
                finally:
                    self._timer.cancel()
        finally:
            current_clock.reset(owner)
            blocking_limit.reset(token)

    def _check_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(seconds, self._timeout_s / MAX_CHECKS), self._check)

    def _check(self) -> None:
        outside_s, sampling_s = self.outside_s, self._session.sampling_s
        if (left := self._timeout_s - max(outside_s, sampling_s)) > 0:
            self._check_in(left)
        else:
            self.expired = "environment" if outside_s >= self._timeout_s else "agent"
            self._cut.reschedule(asyncio.get_running_loop().time())

    async def run_outside(self, awaitable: Awaitable[Found], who: str) -> Found:
        """Await something on the environment's clock. `who` names it in errors."""
        before, self._outside_since = self._outside_s, self._own.now()
        try:
            with self._watch():
                result = await interruptible(awaitable, self._timeout_s - before, who)
        except EventLoopBlocked as error:
            raise self._too_long(str(error)) from error
        finally:
            self._outside_s, self._outside_since = self.outside_s, None
        if self._outside_s >= self._timeout_s:  # blocked where it could not be interrupted
            raise self._too_long(f"{who} took {self._outside_s - before:.3g} s")
        return result

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """Log the call again and again while it does not return."""
        if not self._watched:
            yield
            return
        timed_out = False
        watch.begin(self._watched, f"{self._setting} {self._timeout_s:g} ends an episode that takes longer")
        try:
            yield
        except EventLoopBlocked:
            timed_out = True
            raise
        finally:
            watch.end(self._watched, timed_out=timed_out or self.expired == "environment")

    def describe_timeout(self, error: TimeoutError) -> InfrastructureFailure:
        """Return the failure of an environment or hook that did not answer within the limit."""
        return InfrastructureFailure(
            f"Timed out after {self._setting} {self._timeout_s:g} s, waiting for {timeout_cause(error)}. "
            f"Raise {self._setting} if it needs longer."
        )

    def _too_long(self, what: str) -> InfrastructureFailure:
        return InfrastructureFailure(
            f"{what}. The episode's environment and hooks took {self.outside_s:.3g} s in total, more than "
            f"{self._setting} {self._timeout_s:g}. Make them faster, or raise {self._setting}."
        )
