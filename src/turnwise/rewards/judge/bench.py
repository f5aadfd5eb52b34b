"""Where a judge sits: equal requests are asked once, verdicts are kept, and what cannot be read is asked again."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import Message, assistant, user
from turnwise.rewards.judge.cache import AnswerCache, request_key
from turnwise.rewards.judge.complete import Complete
from turnwise.rewards.judge.counts import JudgeCounts
from turnwise.rewards.judge.fence import harmless
from turnwise.rewards.judge.prompts import AGAIN
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.judge.verdicts import Unreadable
from turnwise.rewards.per_loop import PerLoop
from turnwise.tools.tool import NeedsServer

REPEATED = 2000
"""Characters of an answer that could not be read which the judge is shown again."""
Verdict = TypeVar("Verdict")


class Bench:
    def __init__(self, settings: JudgeSettings, complete: Complete, cache: AnswerCache, counts: JudgeCounts) -> None:
        self.counts = counts
        self._settings, self._complete, self._cache = settings, complete, cache
        self._gate = PerLoop(lambda: asyncio.Semaphore(settings.concurrency))
        self._under_way: PerLoop[dict[str, asyncio.Task[str]]] = PerLoop(dict)

    async def ask(self, messages: Sequence[Message], read: Callable[[str], Verdict]) -> Verdict:
        """`read` gives the verdict of an answer, or raises Unreadable."""
        settings = self._settings
        key = request_key(self._complete.identity, messages, settings.temperature, settings.max_tokens)
        kept = self._cache.get(key)
        if kept is not None:
            try:
                verdict = read(kept)
                self.counts.cached += 1
                return verdict
            except Unreadable:  # somebody changed the file: it is asked for again
                pass
        return read(await self._shared(key, messages, read))

    async def check_server(self) -> None:
        """A judge that is loaded here asks nobody."""
        if isinstance(self._complete, NeedsServer):
            await self._complete.check_server()

    async def _shared(self, key: str, messages: Sequence[Message], read: Callable[[str], Any]) -> str:
        under_way = self._under_way.get()
        task = under_way.get(key)
        if task is None:
            task = under_way[key] = asyncio.create_task(self._asked(key, messages, read))
            task.add_done_callback(lambda done: _forget(under_way, key, done))
        else:
            self.counts.cached += 1
        return await asyncio.shield(task)  # another may be waiting for it, and it is paid for

    async def _asked(self, key: str, messages: Sequence[Message], read: Callable[[str], Any]) -> str:
        """A readable answer, kept under its first request however often it took."""
        talk, problem = list(messages), ""
        for _ in range(self._settings.asks):
            said = await self._said(talk)
            try:
                read(said)
            except Unreadable as unreadable:
                self.counts.unreadable += 1
                problem = str(unreadable)
                before = harmless(said[:REPEATED]).strip() or "(nothing)"
                talk = [*messages, assistant(before), user(f"That cannot be read: {problem}. {AGAIN}")]
            else:
                self._cache.put(key, said)
                return said
        asks = self._settings.asks
        raise InfrastructureFailure(f"the judge {self._settings.model} gave no verdict, {asks} times: {problem}")

    async def _said(self, messages: Sequence[Message]) -> str:
        async with self._gate.get():
            began = time.monotonic()
            try:
                return await self._complete(messages)
            finally:
                self.counts.seconds += time.monotonic() - began


def _forget(under_way: dict[str, asyncio.Task[str]], key: str, done: asyncio.Task[str]) -> None:
    """A failure that nobody waits for any more is nobody's."""
    under_way.pop(key, None)
    if not done.cancelled():
        done.exception()
