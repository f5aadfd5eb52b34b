"""A sandbox for synchronous tests, with an event loop of its own."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import pytest

from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.types import RunResult, SandboxLimits, SandboxUnavailable

Result = TypeVar("Result")
TIERS: tuple[Literal["namespaces", "landlock"], ...] = ("namespaces", "landlock")
LIMITS = SandboxLimits(timeout_s=60.0, memory_mb=256, output_chars=2000, grace_s=2.0)


class SyncSandbox:
    """Wraps a sandbox; `run` runs several calls in one session."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sandbox: Sandbox) -> None:
        self.loop = loop
        self.sandbox = sandbox

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def run(self, *codes: str, seed: int = 0, timeout_s: float | None = None) -> list[RunResult]:
        async def calls() -> list[RunResult]:
            async with self.sandbox.session(seed=seed) as session:
                return [await session.run(code, timeout_s=timeout_s) for code in codes]

        return self.wait(calls())

    def last(self, *codes: str, seed: int = 0, timeout_s: float | None = None) -> RunResult:
        return self.run(*codes, seed=seed, timeout_s=timeout_s)[-1]


@contextmanager
def start_sandbox(
    tier: Literal["namespaces", "landlock"], limits: SandboxLimits = LIMITS, packages: tuple[str, ...] = ()
) -> Iterator[SyncSandbox]:
    """Start a sandbox; skip the test with the probe's message if the kernel lacks the tier."""
    loop = asyncio.new_event_loop()
    try:
        sandbox = loop.run_until_complete(Sandbox.start(limits, tier, packages=packages))
    except SandboxUnavailable as error:
        loop.close()
        pytest.skip(str(error))
    try:
        yield SyncSandbox(loop, sandbox)
    finally:
        loop.run_until_complete(sandbox.close())
        loop.close()
