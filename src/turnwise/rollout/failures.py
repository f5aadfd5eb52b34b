"""Members that broke, or that no reward was found for: a few are left out and counted, many stop the run.

Those that are left are seldom like those that were lost: where a judge is gone, only answers that it had seen before
still have a verdict, and training on them alone would favour them.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from turnwise.core.blocking import allow_interrupts, interruptible
from turnwise.core.errors import (
    FOREIGN_ERRORS,
    EnvironmentFailure,
    InfrastructureFailure,
    Outage,
    UserError,
)
from turnwise.core.loop_clock import count_blocked
from turnwise.core.messages import Message
from turnwise.core.protocols import Env, Observation, StepResult

MAX_DROPPED_SHARE = 0.25
"""The share of episodes that may be lost."""


WINDOW_STEPS = 4
"""Of training, over which that share is taken: after as many, one that lost more by itself stops nothing."""


Result = TypeVar("Result")


@contextmanager
def failure_boundary(where: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """The boundary: whatever an environment raises is the environment's failure, never the run's or the agent's.

    But for what a person must mend, such as a key that is refused or a budget that is spent: that stops the run.
    """
    typed: tuple[type[Exception], ...] = (UserError, EnvironmentFailure, InfrastructureFailure, *passing)
    try:
        yield
    except typed:
        raise
    except FOREIGN_ERRORS as error:
        raise EnvironmentFailure(f"{where}: {type(error).__name__}: {error}") from error


@contextmanager
def creation_boundary() -> Iterator[None]:
    """The boundary around making an environment: what a user gave is not mended by trying again."""
    began = time.monotonic()
    try:
        with failure_boundary("making it", passing=(UserError,)):
            yield
    finally:
        count_blocked(time.monotonic() - began)  # the running episodes wait meanwhile


class GuardedEnv:
    """An environment behind that boundary. Closing it is bounded in time, as the episode is."""

    def __init__(self, env: Env, close_timeout_s: float) -> None:
        self._env, self._close_timeout_s = env, close_timeout_s

    async def start(self) -> Observation:
        with failure_boundary("start"):
            return await self._env.start()

    async def step(self, action: Message) -> StepResult:
        with failure_boundary("step"):
            return await self._env.step(action)

    async def close(self) -> None:
        with failure_boundary("close"):
            async with asyncio.timeout(self._close_timeout_s):
                await interruptible(self._env.close(), self._close_timeout_s, "it")


@asynccontextmanager
async def guard_env(env: Env, timeout_s: float) -> AsyncIterator[GuardedEnv]:
    """The environment behind the boundary, closed however its episode ends; what blocks in it can be interrupted."""
    guarded = GuardedEnv(env, timeout_s)
    with allow_interrupts():
        try:
            yield guarded
        except BaseException:
            with suppress(EnvironmentFailure, InfrastructureFailure):  # the first failure is the one to tell
                await guarded.close()
            raise
        await guarded.close()


async def run_with_retries(
    attempts: int, play: Callable[[int], Awaitable[Result]], broke: Callable[[Exception], None] = lambda failure: None
) -> Result | Exception:
    """`play(luck)`, or the last failure where every attempt broke.

    What broke for reasons of infrastructure is played again with the same luck, so that the agent says and meets the
    same: with other luck, what makes use of tools that fail would be seen more rarely than it is done. An environment
    that broke meets other luck, which may spare it.
    """
    last: Exception = RuntimeError("no attempt was made")
    luck = 0
    for _ in range(attempts):
        try:
            return await play(luck)
        except InfrastructureFailure as failure:
            last = failure
        except EnvironmentFailure as failure:
            last, luck = failure, luck + 1
        broke(last)
    return last


@dataclass(slots=True, kw_only=True)
class DroppedEpisodes:
    """Episodes of a step that are missing from its groups."""

    dropped: int = 0
    total: int = 0
    """Episodes that the step asked for."""
    reason: str = ""
    """Last failure that dropped an episode."""


def check_dropped(*steps: DroppedEpisodes) -> None:
    """Raise Outage if more than MAX_DROPPED_SHARE of these steps' episodes were dropped."""
    dropped, total = sum(step.dropped for step in steps), sum(step.total for step in steps)
    if dropped > MAX_DROPPED_SHARE * total:
        raise Outage(
            f"{dropped} of {total} episodes were dropped, too many to train without them. "
            f"Fix the cause of the last failure: {steps[-1].reason}"
        )


class DropMonitor:
    """Dropped episodes of the last WINDOW_STEPS steps.

    Not part of a checkpoint: a resumed run starts with an empty window, because the cause may have been fixed.
    """

    def __init__(self) -> None:
        self._steps: deque[DroppedEpisodes] = deque(maxlen=WINDOW_STEPS)

    def add(self, step: DroppedEpisodes) -> None:
        self._steps.append(step)
        check_dropped(*self._steps)
