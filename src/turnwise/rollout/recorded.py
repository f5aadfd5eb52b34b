"""Play recorded episodes again: sampled tokens come from the record, and everything else happens anew.

record     c a  c a  c a  c a      contexts (c) and actions (a)
replay     C a  C a  C a  C a      built anew (C), compared with the recorded ones
branch     C a  C a  C A  C A      from a turn on, a policy samples (A)
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from turnwise.core.protocols import Completion, Policy, Sampling, Session
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory, Turn


class DifferentContext(Exception):
    """The context of a turn is not the recorded one, so the recorded action does not belong to it."""

    def __init__(self, turn: int, recorded: Sequence[int], built: Sequence[int]) -> None:
        super().__init__(f"the context of turn {turn + 1} differs")
        self.turn, self.recorded, self.built = turn, tuple(recorded), tuple(built)


class RecordedSession:
    """Answers with recorded turns, then with a session whose context already has the first `held` tokens."""

    def __init__(self, turns: Sequence[Turn], then: Session | None = None, held: int = 0) -> None:
        self._turns, self._then, self._held = turns, then, held
        self._asked = 0
        self._context: list[int] = []

    @property
    def sampling_s(self) -> float:
        return 0.0 if self._then is None else self._then.sampling_s

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        number, self._asked = self._asked, self._asked + 1
        if number < len(self._turns):
            return self._repeat(number, ids, restart)
        if self._then is None:
            raise DifferentContext(number, (), ids)
        if number > len(self._turns):
            return await self._then.generate(ids, sampling, restart)
        context = list(ids) if restart else [*self._context, *ids]
        return await self._then.generate(context[self._held :], sampling)

    def _repeat(self, number: int, ids: Sequence[int], restart: bool) -> Completion:
        turn = self._turns[number]
        if tuple(ids) != turn.context_ids or restart == turn.extends:
            raise DifferentContext(number, turn.context_ids, ids)
        self._context = [*([] if restart else self._context), *ids, *turn.action_ids]
        return Completion(
            ids=turn.action_ids,
            logprobs=turn.action_logprobs,
            stop=turn.stop,
            temperature=turn.temperature,
            policy_versions=turn.policy_versions,
            values=turn.values,
            constraint=turn.constraint,
        )

    def fork(self, key: EpisodeKey, length: int | None = None) -> AbstractAsyncContextManager[Session]:
        """Fork the session that goes on. Recorded turns have no keys and values to share."""
        if self._then is None or self._asked <= len(self._turns):
            raise RuntimeError("a session cannot be forked while it answers from a record")
        return self._then.fork(key, length)


class RecordedPolicy:
    """Answers with the turns of a step's episodes, each to the episode of its task, member and attempt."""

    def __init__(self, episodes: Iterable[Trajectory]) -> None:
        self._turns = {_place(episode.task, episode.member, episode.attempt): episode.turns for episode in episodes}

    @asynccontextmanager
    async def open(self, key: EpisodeKey) -> AsyncIterator[Session]:
        # An agent whose match was over before it acted has no record.
        yield RecordedSession(self._turns.get(_place(key.task, key.member, key.attempt), ()))


def _place(task: Task, member: int, attempt: int) -> int:
    return address(*task.parts, member, attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchingPolicy:
    """Follows an episode to one of its turns, and goes on with forks of a session that holds the context there.

    `open_shared` computes that context once, whatever the number of branches.
    """

    turns: Sequence[Turn]
    """The turns before the branches."""
    shared: Session
    held: int
    """Tokens that each fork starts with."""

    @asynccontextmanager
    async def open(self, key: EpisodeKey) -> AsyncIterator[Session]:
        async with self.shared.fork(key, self.held) as session:
            yield RecordedSession(self.turns, session, self.held)


@asynccontextmanager
async def open_shared(
    policy: Policy, key: EpisodeKey, turns: Sequence[Turn], turn: int
) -> AsyncIterator[BranchingPolicy]:
    """Compute the context in which `turns[turn]` was sampled, and yield the policy of branches from there."""
    context = context_at(turns, turn)
    async with policy.open(key) as shared:
        await shared.generate(context, Sampling(max_tokens=1))
        yield BranchingPolicy(turns=turns[:turn], shared=shared, held=len(context) - 1)


def context_at(turns: Sequence[Turn], turn: int) -> tuple[int, ...]:
    """Return the whole context in which a turn was sampled."""
    first = max(number for number in range(turn + 1) if not turns[number].extends)
    before = [token for earlier in turns[first:turn] for token in (*earlier.context_ids, *earlier.action_ids)]
    return (*before, *turns[turn].context_ids)


def branch_key(key: EpisodeKey, turn: int, number: int) -> EpisodeKey:
    """Return the key of a branch: its sampled tokens have random streams of their own."""
    return replace(key, branch=(turn + 1) * MAX_BRANCHES + number)


MAX_BRANCHES = 1 << 20
"""Branches of a turn, at most."""
