"""One sandbox for all episodes of a process."""

import asyncio
import atexit

from turnwise.concurrency.per_loop import PerLoop
from turnwise.sandbox.host import Sandbox, SandboxSession
from turnwise.sandbox.python_install import DEFAULT_PACKAGES, AgentAccess
from turnwise.sandbox.types import SandboxLimits


class SharedSandbox:
    """Starts a sandbox with the first session. Another event loop gets another one; the earlier one is killed."""

    def __init__(
        self,
        limits: SandboxLimits,
        packages: tuple[str, ...] = DEFAULT_PACKAGES,
        *,
        own_root: bool = False,
        agent: AgentAccess | None = None,
    ) -> None:
        self.limits = limits
        self._packages = packages
        self._own_root = own_root
        self._agent = agent
        self._current: Sandbox | None = None
        self._starting = PerLoop(self._enter_loop)

    async def session(self, seed: int = 0) -> SandboxSession:
        """Create a session. Raises SandboxUnavailable if no isolation works on this machine."""
        return (await self._sandbox()).session(seed)

    async def _sandbox(self) -> Sandbox:
        async with self._starting.get():
            if self._current is None:
                self._current = await Sandbox.start(
                    self.limits, packages=self._packages, own_root=self._own_root, agent=self._agent
                )
                atexit.register(self._current.kill)
            return self._current

    def _enter_loop(self) -> asyncio.Lock:
        self.kill()
        return asyncio.Lock()

    def kill(self) -> None:
        if self._current is not None:
            atexit.unregister(self._current.kill)
            self._current.kill()
            self._current = None
