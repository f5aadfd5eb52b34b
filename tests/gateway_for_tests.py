"""A gateway with a scripted or tiny policy, for tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from episodes_for_tests import key_of, limits, renderer, says, task_of
from turnwise.core.messages import Message
from turnwise.core.protocols import Completion, Policy, Sampling, Session
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Turn
from turnwise.gateway.capture import GatewayEpisode
from turnwise.gateway.chat import ChatRequest
from turnwise.gateway.server import Gateway
from turnwise.gateway.sessions import SessionPool
from turnwise.gateway.store import CallStore
from turnwise.gateway.workers import Workers


@dataclass
class RecordingPolicy:
    """Passes on what a policy samples and keeps it, with the whole context that it was sampled from."""

    policy: Policy
    samples: list[tuple[tuple[int, ...], Completion]] = field(default_factory=list)
    keys: list[EpisodeKey] = field(default_factory=list)
    open_sessions: int = 0
    most_open: int = 0

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager["RecordingSession"]:
        return self._open(key)

    @asynccontextmanager
    async def _open(self, key: EpisodeKey) -> AsyncIterator["RecordingSession"]:
        self.keys.append(key)
        async with self.policy.open(key) as session:
            self.open_sessions += 1
            self.most_open = max(self.most_open, self.open_sessions)
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


class FunctionPolicy:
    """Calls a function for every turn."""

    sampling_s = 0.0

    def __init__(self, function: Callable[[Sampling], Awaitable[Completion]]) -> None:
        self._function = function

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager["FunctionPolicy"]:
        return nullcontext(self)

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        return await self._function(sampling)


@asynccontextmanager
async def open_gateway(
    policy: Policy | None = None, folder: Path | None = None, **changes: Any
) -> AsyncIterator[Gateway]:
    """Open a gateway over `policy`, or over one that always says "hello"."""
    settings: dict[str, Any] = {
        "renderer": renderer(),
        "limits": limits(max_new_tokens=256),
        "max_sessions": 8,
    } | changes
    store = None if folder is None else folder / "calls.sqlite"
    async with Gateway(policy or says("hello"), store=store, **settings) as gateway:
        yield gateway


def episode_key(member: int = 0) -> EpisodeKey:
    return key_of(task_of("agent"), member=member)


@asynccontextmanager
async def open_episode(
    policy: Policy, *, max_sessions: int = 8, closes_store: bool = True, **changes: Any
) -> AsyncIterator[GatewayEpisode]:
    """Open one episode without a server."""
    settings: dict[str, Any] = {"renderer": renderer(), "limits": limits(max_new_tokens=256)} | changes
    settings = {"sessions": SessionPool(policy, max_sessions), "store": CallStore(None)} | settings
    workers = Workers()
    episode = GatewayEpisode(episode_key(), bearer="b", workers=workers, **settings)
    try:
        yield episode
    finally:
        await episode.close()
        workers.close()
        if closes_store:
            settings["store"].close()


def run_episode(policy: Any, talk: Any, **changes: Any) -> Any:
    """Return what `talk` returns, the turns and the episode."""

    async def run():
        async with open_episode(policy, **changes) as episode:
            found = await talk(episode)
            return found, episode.turns(), episode

    return asyncio.run(run())


_numbers = count()


def request_of(*messages: Message, **changes: Any) -> ChatRequest:
    """Return a request; its body is unlike any other."""
    return ChatRequest(messages=messages, **{"digest": str(next(_numbers)).encode()} | changes)


def full_contexts(turns: Sequence[Turn]) -> list[tuple[tuple[int, ...], Turn]]:
    """Return each turn with all ids before its action."""
    found = []
    context: tuple[int, ...] = ()
    for turn in turns:
        context = (*context, *turn.context_ids) if turn.extends else turn.context_ids
        found.append((context, turn))
        context = (*context, *turn.action_ids)
    return found
