"""An engine that generates what a function returns: for tests and scripted agents."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from turnwise.core.protocols import Completion, EngineStats, Sampling, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Stop

Script = Callable[[EpisodeKey, int, list[int]], Sequence[int]]
"""(episode, turn, all ids so far) -> ids to generate."""


class ScriptedSession:
    def __init__(self, key: EpisodeKey, script: Script, stop_ids: frozenset[int], context: Sequence[int] = ()) -> None:
        self._key, self._script, self._stop_ids = key, script, stop_ids
        self._context = list(context)
        self._turn = 0

    sampling_s = 0.0
    """A script takes no time."""

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        if restart:
            self._context.clear()
        self._context.extend(ids)
        generated = list(self._script(self._key, self._turn, list(self._context)))[: sampling.max_tokens]
        self._turn += 1
        self._context.extend(generated)
        stop = Stop.EOS if generated and generated[-1] in self._stop_ids else Stop.LENGTH
        return Completion(
            ids=tuple(generated), logprobs=(0.0,) * len(generated), stop=stop, temperature=sampling.temperature or 1.0
        )

    @asynccontextmanager
    async def fork(self, key: EpisodeKey, length: int | None = None) -> AsyncIterator["ScriptedSession"]:
        """Open a session whose first turn is number 0 again, as in any other session."""
        yield ScriptedSession(key, self._script, self._stop_ids, self._context[:length])


class ScriptedEngine:
    """Every token has log-probability 0: a script is certain. It has no weights, so publishing changes nothing."""

    def __init__(self, script: Script, stop_ids: Sequence[int]) -> None:
        self._script, self._stop_ids = script, frozenset(stop_ids)

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[ScriptedSession]:
        return self._session(key)

    async def publish(self, version: int, weights: WeightSource) -> None:
        pass

    async def sleep(self) -> None:
        pass

    def stats(self) -> EngineStats:
        return EngineStats()

    @asynccontextmanager
    async def _session(self, key: EpisodeKey) -> AsyncIterator[ScriptedSession]:
        yield ScriptedSession(key, self._script, self._stop_ids)
