"""A gateway with a scripted or tiny policy, for tests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from episodes_for_tests import key_of, limits, renderer, says, task_of
from turnwise.core.protocols import Completion, Policy, Sampling, Session
from turnwise.core.task import EpisodeKey
from turnwise.gateway.server import Gateway


@dataclass
class RecordingPolicy:
    """Passes on what a policy samples and keeps it, with the whole context that it was sampled from."""

    policy: Policy
    samples: list[tuple[tuple[int, ...], Completion]] = field(default_factory=list)
    keys: list[EpisodeKey] = field(default_factory=list)
    open_sessions: int = 0

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager["RecordingSession"]:
        return self._open(key)

    @asynccontextmanager
    async def _open(self, key: EpisodeKey) -> AsyncIterator["RecordingSession"]:
        self.keys.append(key)
        async with self.policy.open(key) as session:
            self.open_sessions += 1
            try:
                yield RecordingSession(self, session)
            finally:
                self.open_sessions -= 1


class RecordingSession:
    def __init__(self, recorder: RecordingPolicy, session: Session) -> None:
        self._recorder, self._session = recorder, session
        self._context: list[int] = []

    sampling_s = 0.0

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        if restart:
            self._context.clear()
        self._context += ids
        completion = await self._session.generate(ids, sampling, restart)
        self._recorder.samples.append((tuple(self._context), completion))
        self._context += completion.ids
        return completion


@asynccontextmanager
async def open_gateway(
    policy: Policy | None = None, folder: Path | None = None, **changes: Any
) -> AsyncIterator[Gateway]:
    """Open a gateway over `policy`, or over one that always says "hello"."""
    settings: dict[str, Any] = {"renderer": renderer(), "limits": limits(), "max_sessions": 8} | changes
    store = None if folder is None else folder / "calls.sqlite"
    async with Gateway(policy or says("hello"), store=store, **settings) as gateway:
        yield gateway


def episode_key(member: int = 0) -> EpisodeKey:
    return key_of(task_of("agent"), member=member)
