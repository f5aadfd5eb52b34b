"""One sandbox for all episodes of a process."""

import asyncio
import atexit

from turnwise.sandbox.host import Sandbox, SandboxSession
from turnwise.sandbox.python_install import DEFAULT_PACKAGES
from turnwise.sandbox.types import SandboxLimits


class SharedSandbox:
    """Starts a sandbox with the first session. Another event loop gets another one; the earlier one is killed."""

    def __init__(self, limits: SandboxLimits, packages: tuple[str, ...] = DEFAULT_PACKAGES) -> None:
        self.limits = limits
        self._packages = packages
        self._current: Sandbox | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()

    async def session(self, seed: int = 0) -> SandboxSession:
        """Create a session. Raises SandboxUnavailable if no isolation works on this machine."""
        return (await self._sandbox()).session(seed)

    async def _sandbox(self) -> Sandbox:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.kill()
            self._loop, self._starting = loop, asyncio.Lock()
        async with self._starting:
            if self._current is None:
                self._current = await Sandbox.start(self.limits, packages=self._packages)
                atexit.register(self._current.kill)
            return self._current

    def kill(self) -> None:
        if self._current is not None:
            atexit.unregister(self._current.kill)
            self._current.kill()
            self._current = None
