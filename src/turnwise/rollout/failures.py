"""Failures of environments and infrastructure: attribute, retry, drop, and stop the run if too many are dropped.

Dropped episodes bias a step. When a judge is unavailable, for example, only episodes with cached verdicts remain, and
training on those alone would favour them. So a few are dropped and counted; many stop the run.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from turnwise.concurrency.blocking import allow_interrupts, interruptible
from turnwise.concurrency.loop_clock import count_blocked
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, Outage
from turnwise.core.messages import Message
from turnwise.core.protocols import Env, Observation, StepResult
from turnwise.user_code.source_location import failure_boundary

MAX_DROPPED_SHARE = 0.25
"""Largest share of episodes that may be dropped."""


WINDOW_STEPS = 4
"""Training steps over which that share is taken. Once the window is full, a single bad step no longer stops the run."""


Result = TypeVar("Result")


@contextmanager
def creation_boundary() -> Iterator[None]:
    """Failure boundary around the construction of an environment. User errors pass: retrying cannot fix them."""
    began = time.monotonic()
    try:
        with failure_boundary("creating the environment"):
            yield
    finally:
        count_blocked(time.monotonic() - began)  # construction blocks all running episodes


class GuardedEnv:
    """Environment whose exceptions pass through `failure_boundary`. `close` has a time limit."""

    def __init__(self, env: Env, close_timeout_s: float) -> None:
        self._env, self._close_timeout_s = env, close_timeout_s

    async def start(self) -> Observation:
        with failure_boundary("the environment's start"):
            return await self._env.start()

    async def step(self, action: Message) -> StepResult:
        with failure_boundary("the environment's step"):
            return await self._env.step(action)

    async def close(self) -> None:
        with failure_boundary("the environment's close"):
            async with asyncio.timeout(self._close_timeout_s):
                await interruptible(self._env.close(), self._close_timeout_s, "it")


@asynccontextmanager
async def guard_env(env: Env, timeout_s: float) -> AsyncIterator[GuardedEnv]:
    """Yield the guarded environment and close it however the episode ends. Blocking code in it can be interrupted."""
    guarded = GuardedEnv(env, timeout_s)
    with allow_interrupts():
        try:
            yield guarded
        except BaseException:
            with suppress(EnvironmentFailure, InfrastructureFailure):  # report the first failure
                await guarded.close()
            raise
        await guarded.close()


async def run_with_retries(
    attempts: int,
    play: Callable[[int], Awaitable[Result]],
    on_failure: Callable[[Exception], None] = lambda failure: None,
) -> Result | Exception:
    """Return the result of `play(attempt)`, or the last failure if all attempts failed.

    An infrastructure failure is retried with the same attempt number and thus the same randomness. New randomness
    would bias training against whatever uses the failing tool. An environment failure is retried with the next attempt
    number, since other randomness may avoid it.
    """
    last: Exception = RuntimeError("no attempt was made")
    attempt = 0
    for _ in range(attempts):
        try:
            return await play(attempt)
        except InfrastructureFailure as failure:
            last = failure
        except EnvironmentFailure as failure:
            last, attempt = failure, attempt + 1
        on_failure(last)
    return last


@dataclass(slots=True, kw_only=True)
class DroppedEpisodes:
    """Episodes of a step that are missing from its groups."""

    dropped: int = 0
    total: int = 0
    """Episodes that the step started."""
    reason: str = ""
    """Last failure that dropped an episode."""
    cause: Exception | None = None
    """The exception behind `reason`, for tracebacks."""


def check_dropped(*steps: DroppedEpisodes, purpose: str = "train") -> None:
    """Raise Outage if more than MAX_DROPPED_SHARE of these steps' episodes were dropped.

    `purpose`: what the episodes are for, in the message.
    """
    dropped, total = sum(step.dropped for step in steps), sum(step.total for step in steps)
    if dropped > MAX_DROPPED_SHARE * total:
        raise Outage(
            f"{dropped} of {total} episodes were dropped, too many to {purpose} without them. "
            f"Fix the cause of the last failure: {steps[-1].reason}"
        ) from steps[-1].cause


class DropMonitor:
    """Dropped episodes of the last WINDOW_STEPS steps.

    Not part of a checkpoint: a resumed run starts with an empty window, because the cause may have been fixed.
    """

    def __init__(self) -> None:
        self._steps: deque[DroppedEpisodes] = deque(maxlen=WINDOW_STEPS)

    def add(self, step: DroppedEpisodes) -> None:
        self._steps.append(step)
        check_dropped(*self._steps)
