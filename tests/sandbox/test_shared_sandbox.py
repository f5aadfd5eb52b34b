"""SharedSandbox: one sandbox per event loop, and none left over."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.shared import SharedSandbox
from turnwise.sandbox.types import SandboxFailure, SandboxLimits, SandboxUnavailable


def test_shared_sandbox_starts_one_per_event_loop(optional_part: Callable[..., NoReturn]) -> None:
    shared = SharedSandbox(SandboxLimits(), packages=())

    async def sandboxes() -> set[Sandbox]:
        sessions = await asyncio.gather(shared.session(), shared.session(seed=1))
        assert [(await session.run("6 * 7")).value for session in sessions] == ["42", "42"]
        return {session._box for session in sessions}

    async def is_usable(sandbox: Sandbox) -> bool:
        try:
            return (await sandbox.session().run("1")).status == "ok"
        except SandboxFailure:
            return False

    try:
        (first,) = asyncio.run(sandboxes())
    except SandboxUnavailable as error:
        optional_part(str(error))
    (second,) = asyncio.run(sandboxes())
    assert second is not first and not asyncio.run(is_usable(first)), "the sandbox of the first loop was killed"
    shared.kill()
    assert not asyncio.run(is_usable(second))
