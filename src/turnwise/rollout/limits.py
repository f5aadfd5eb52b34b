"""How long an episode may be, in tokens and in time; limits in turns and actions are the environment's own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from turnwise.core.blocking import EventLoopBlocked, blocking_limit, interruptible
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.loop_clock import LoopClock, current_clock
from turnwise.core.protocols import Sampling, Session
from turnwise.core.trajectory import Status
from turnwise.rollout.context import ContextState

Found = TypeVar("Found")


OFTEN = 100
"""Looks at the clock while one limit passes, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    sampling: Sampling
    """Of a turn; its `max_tokens` is the most that a turn may sample."""
    max_tokens: int
    """Of the context, at any time. One that starts anew need not grow: what then ends an episode whose environment has
    no limit of its own is the time."""
    timeout_s: float
    """Limit of the agent's own sampling, and again of everything outside it, as `EpisodeClock` measures them."""

    def check(self, pending: ContextState) -> Status:
        return Status.ONGOING if pending.context_length < self.max_tokens else Status.TRUNCATED_TOKENS

    def turn_sampling(self, pending: ContextState) -> Sampling:
        """The turn's budget shrinks to what is left, so that the last turn never overruns the context."""
        most = self.sampling.max_tokens if pending.max_new_tokens is None else pending.max_new_tokens
        most = min(most, self.max_tokens - pending.context_length)
        return self.sampling if most == self.sampling.max_tokens else replace(self.sampling, max_tokens=most)


def timeout_cause(error: TimeoutError) -> str:
    """Who was, when time was over: rewards that are cut off say so in a note; else it is all but the agent."""
    notes: list[str] = getattr(error.__cause__, "__notes__", [])
    return notes[0] if notes else "the environment"


class EpisodeClock:
    """Two times, each with the limit `timeout_s`: that of the agent's own sampling, and that of the world outside.

    The world is the environment with its tools and rewards, and a hook that writes summaries. Neither clock runs while
    the episode waits for others: for a pass of the engine, for code of another episode that blocks the event loop, or
    for the opponent's move. (In other threads than the main one, blocking code of other episodes is not noticed.)
    """

    def __init__(self, session: Session, timeout_s: float) -> None:
        self._session, self._timeout_s = session, timeout_s
        self._own = LoopClock()
        self._outside_s = 0.0
        self._outside_since: float | None = None
        self.late: Literal["agent", "world"] | None = None
        """Who ran out of time."""

    @property
    def outside_s(self) -> float:
        since = self._outside_since
        return self._outside_s + (0.0 if since is None else self._own.now() - since)

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Raises TimeoutError where one of the two runs out, which `late` then names."""
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
        self._timer = asyncio.get_running_loop().call_later(max(seconds, self._timeout_s / OFTEN), self._check)

    def _check(self) -> None:
        outside_s, sampling_s = self.outside_s, self._session.sampling_s
        if (left := self._timeout_s - max(outside_s, sampling_s)) > 0:
            self._check_in(left)
        else:
            self.late = "world" if outside_s >= self._timeout_s else "agent"
            self._cut.reschedule(asyncio.get_running_loop().time())

    async def outside(self, awaitable: Awaitable[Found], who: str) -> Found:
        """Awaits something of the world, on its time. `who`: how an error names it where it blocks for too long."""
        before, self._outside_since = self._outside_s, self._own.now()
        try:
            found = await interruptible(awaitable, self._timeout_s - before, who)
        except EventLoopBlocked as error:
            raise self._too_long(str(error)) from error
        finally:
            self._outside_s, self._outside_since = self.outside_s, None
        if self._outside_s >= self._timeout_s:  # it blocked where nothing could interrupt it
            raise self._too_long(f"{who} took {self._outside_s - before:.3g} s")
        return found

    def _too_long(self, what: str) -> InfrastructureFailure:
        return InfrastructureFailure(
            f"{what}; the episode's environment and hooks took {self.outside_s:.3g} s in all, and rollout.timeout_s is "
            f"{self._timeout_s:g}: let it return sooner, or raise that"
        )
