"""Sessions of the policy for the branches of all episodes. Weight updates wait for running calls and block new ones."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from turnwise.core.protocols import Completion, Policy, Sampling, Session
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey


@dataclass(slots=True, eq=False)
class BranchSession:
    """Session of one branch of an episode. It may be closed between calls; the next call then opens it again."""

    key: EpisodeKey
    session: Session | None = None
    exits: AsyncExitStack = field(default_factory=AsyncExitStack)
    sampled: int = 0
    """Recorded tokens that it sampled."""

    async def open(self, policy: Policy) -> Session:
        """Open the session. After the first time it has another key, so that no random number is used twice."""
        again = address("reopened", self.key.branch, self.sampled) if self.sampled else self.key.branch
        self.session = await self.exits.enter_async_context(policy.open(replace(self.key, branch=again)))
        return self.session

    async def close(self) -> None:
        self.session = None
        await self.exits.aclose()


class SessionPool:
    """Opens at most `max_open` sessions. A call that finds none free closes the one that was unused for longest.

    Without this limit, episodes with several branches would hold every slot of the engine and wait for another.
    """

    def __init__(self, policy: Policy, max_open: int) -> None:
        self._policy, self._max_open = policy, max_open
        self._permits = asyncio.Semaphore(max_open)
        self._idle: OrderedDict[BranchSession, None] = OrderedDict()  # no BoundedCache: closing one is awaited
        self._running = 0
        self._resumed, self._quiet = asyncio.Event(), asyncio.Event()
        self._resumed.set()
        self._quiet.set()

    async def generate(
        self, branch: BranchSession, context: Sequence[int], appended: int, sampling: Sampling
    ) -> Completion:
        """Sample one turn. The last `appended` ids of the context are new to the branch.

        Waits while paused and while `max_open` calls are running.
        """
        async with self._permits:
            while not self._resumed.is_set():
                await self._resumed.wait()
            self._running += 1
            self._quiet.clear()
            try:
                return await self._generate(branch, context, appended, sampling)
            finally:
                self._running -= 1
                if not self._running:
                    self._quiet.set()

    async def _generate(
        self, branch: BranchSession, context: Sequence[int], appended: int, sampling: Sampling
    ) -> Completion:
        self._idle.pop(branch, None)
        try:
            if branch.session is not None:
                completion = await branch.session.generate(context[len(context) - appended :], sampling)
            else:
                await self._make_room()
                session = await branch.open(self._policy)
                completion = await session.generate(context, sampling, restart=True)
        except BaseException:
            await branch.close()  # its context is unknown now
            raise
        self._idle[branch] = None
        return completion

    async def _make_room(self) -> None:
        while self._idle and len(self._idle) + self._running > self._max_open:
            unused, _ = self._idle.popitem(last=False)
            await unused.close()

    async def pause(self) -> None:
        """Block new calls, wait for running ones and close all sessions: their caches are of the current weights."""
        self._resumed.clear()
        await self._quiet.wait()
        await self.close(*self._idle)

    def resume(self) -> None:
        """Let the blocked calls continue."""
        self._resumed.set()

    async def close(self, *branches: BranchSession) -> None:
        """Close the sessions of branches without a running call."""
        for branch in branches:
            self._idle.pop(branch, None)
            await branch.close()
