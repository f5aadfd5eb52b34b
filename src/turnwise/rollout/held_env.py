"""The environment of one episode, held for an agent in another process: by an environment server or a cluster's worker.

Its failures are typed as beside the agent, its time is limited and counted, and closing it ends a running call.
"""

import asyncio
from collections.abc import Awaitable
from typing import Generic, TypeVar

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import Message
from turnwise.core.protocols import Env, Observation, StepResult
from turnwise.rollout.clock import EpisodeClock
from turnwise.rollout.failures import GuardedEnv

HeldType = TypeVar("HeldType", bound=Env)
Result = TypeVar("Result")


class _NeverSamples:
    sampling_s = 0.0


class HeldEnv(Generic[HeldType]):
    """An environment and the clock of its own code, which stops while other environments block the event loop."""

    def __init__(
        self,
        env: HeldType,
        *,
        timeout_s: float,
        close_s: float,
        setting: str = "rollout.timeout_s",
        per_call: bool = False,
    ) -> None:
        """`timeout_s`: limit of the episode, or of each call if `per_call`; `setting`: its name, for errors."""
        self.env = env
        self._guarded = GuardedEnv(env, close_s)
        self._timeout_s, self._setting, self._per_call = timeout_s, setting, per_call
        self._clock = self._new_clock()
        self._running: asyncio.Task[object] | None = None
        self._closed = False

    def _new_clock(self) -> EpisodeClock:
        return EpisodeClock(_NeverSamples(), self._timeout_s, setting=self._setting)

    async def start(self) -> tuple[Observation, float]:
        """Return the observation and the seconds that the environment took."""
        return await self._call(self._guarded.start(), "the environment's start")

    async def step(self, action: Message) -> tuple[StepResult, float]:
        """Return the result and the seconds that the environment took."""
        return await self._call(self._guarded.step(action), "the environment")

    async def close(self) -> None:
        """Close the environment. A running call raises InfrastructureFailure. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        if self._running is not None:
            self._running.cancel()
        await self._guarded.close()

    async def _call(self, work: Awaitable[Result], who: str) -> tuple[Result, float]:
        clock = self._clock = self._new_clock() if self._per_call else self._clock
        before_s = clock.outside_s
        self._running = call = asyncio.ensure_future(_run(clock, work, who))
        try:
            result = await call
        except asyncio.CancelledError:
            if not self._closed or not call.cancelled():
                raise
            raise InfrastructureFailure(f"{who} was closed during a call") from None
        finally:
            self._running = None
        return result, clock.outside_s - before_s


async def _run(clock: EpisodeClock, work: Awaitable[Result], who: str) -> Result:
    try:
        async with clock.limit():
            return await clock.run_outside(work, who)
    except TimeoutError as error:
        if clock.expired is None:
            raise
        raise clock.describe_timeout(error) from error
