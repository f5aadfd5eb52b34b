"""Compare an episode that was played again with its record, and measure the value of its states by branches."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

from turnwise.core.messages import Message
from turnwise.core.protocols import Env, Observation, SeededEnv, StepResult
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory, Turn
from turnwise.evaluation.statistics import wilson_interval
from turnwise.record.trajectories import as_recorded
from turnwise.rollout.collect import Collector
from turnwise.rollout.recorded import branch_key, open_shared

COMPARED_OF_TURN = ("context_ids", "extends", "action_ids", "message", "stop", "spans", "reward", "invalid", "info")
"""What a replay must repeat of each turn. The rest describes how the tokens were sampled, which the record decides."""
COMPARED_OF_EPISODE = ("status", "turn_rewards", "rewards")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first thing that a replay did not repeat."""

    turn: int | None
    """Counted from 0; None: the episode as a whole."""
    name: str
    """Its name in `Turn` or `Trajectory`."""
    recorded: Any
    replayed: Any


def find_difference(recorded: Trajectory, replayed: Trajectory, *, ignore: Sequence[str] = ()) -> Difference | None:
    """Return the first difference; None if the episodes are equal. `ignore`: names that are not compared."""
    replayed = as_recorded(replayed)
    for number, (before, now) in enumerate(zip_longest(recorded.turns, replayed.turns)):
        if before is None or now is None:
            return Difference(turn=number, name="turns", recorded=len(recorded.turns), replayed=len(replayed.turns))
        if (difference := _compare(before, now, number, COMPARED_OF_TURN, ignore)) is not None:
            return difference
    return _compare(recorded, replayed, None, COMPARED_OF_EPISODE, ignore)


def _compare(
    recorded: Turn | Trajectory,
    replayed: Turn | Trajectory,
    turn: int | None,
    names: Sequence[str],
    ignore: Sequence[str],
) -> Difference | None:
    for name in names:
        before, now = getattr(recorded, name), getattr(replayed, name)
        if before != now and name not in ignore:
            return Difference(turn=turn, name=name, recorded=before, replayed=now)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """Episodes that follow a recorded one up to a turn, and from there on are sampled."""

    turn: int
    """First turn that was sampled, counted from 0."""
    episodes: tuple[Trajectory, ...]
    """The branches, each a whole episode."""

    @property
    def success(self) -> float:
        """Share that succeeded: the value of the state before the turn."""
        return sum(episode.status.succeeded for episode in self.episodes) / len(self.episodes)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of `success`."""
        return wilson_interval(self.success, len(self.episodes))

    @property
    def reward(self) -> float:
        """Mean of the environment's rewards, from the first turn on."""
        return sum(turn.reward for episode in self.episodes for turn in episode.turns) / len(self.episodes)


async def play_branches(
    collector: Collector,
    key: EpisodeKey,
    recorded: Trajectory,
    turn: int,
    *,
    samples: int,
    progress: Callable[[], None] = lambda: None,
) -> Branches:
    """Play an episode again up to `turn`, `samples` times, and let the collector's policy go on.

    The environment draws new random numbers from there on, if they come from one stream (`SeededEnv`).
    """
    steps = sum(not earlier.is_summary for earlier in recorded.turns[:turn])
    gate = asyncio.Semaphore(max(1, collector.in_flight - 1))  # one context is the one that branches share
    async with open_shared(collector.policy, branch_key(key, turn, samples), recorded.turns, turn) as policy:

        async def play(number: int) -> Trajectory:
            branch = branch_key(key, turn, number)

            def make_env(task: Task, member: int, attempt: int) -> Env:
                return NewLuck(collector.make_env(task, member, attempt), steps, branch.address)

            async with gate:
                (episode,) = await replace(collector, policy=policy, make_env=make_env).episodes([branch])
            progress()
            return episode

        try:
            async with asyncio.TaskGroup() as running:
                playing = [running.create_task(play(number)) for number in range(samples)]
        except ExceptionGroup as failures:  # all have the same cause: one is enough to report
            raise failures.exceptions[0] from None
    return Branches(turn=turn, episodes=tuple(task.result() for task in playing))


class NewLuck:
    """An environment that draws new random numbers after its first `steps` steps."""

    def __init__(self, env: Env, steps: int, seed: int) -> None:
        self._env, self._left, self._seed = env, steps, seed

    async def start(self) -> Observation:
        observation = await self._env.start()
        self._reseed_when_due()
        return observation

    async def step(self, action: Message) -> StepResult:
        result = await self._env.step(action)
        self._left -= 1
        self._reseed_when_due()
        return result

    async def close(self) -> None:
        await self._env.close()

    def _reseed_when_due(self) -> None:
        if self._left == 0 and isinstance(self._env, SeededEnv):
            self._env.luck.seed(self._seed)


def find_lost_turn(values: Sequence[float]) -> int | None:
    """Return the turn in which success fell most; None: it never fell. `values`: before each turn, and at the end."""
    falls = [before - after for before, after in pairwise(values)]
    largest = max(falls, default=0.0)
    return falls.index(largest) if largest > 0 else None
