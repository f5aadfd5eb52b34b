"""The one place where rewards are computed: of submitted answers, of trajectories and of groups.

    answer:        sum of weight * score over the parts of its rubric; becomes the environment's reward of the turn
    state:         score of a description or prediction by a judge; the environment weights and adds it
    turn:          environment reward - format penalty, times the weight ENV, + weight * reward of each reward function
                   and judge

Rewards are always computed from the turns' own rewards, so scoring a trajectory twice changes nothing.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from turnwise.concurrency.blocking import allow_interrupts, blocking_limit
from turnwise.concurrency.context_values import set_in_block
from turnwise.concurrency.loop_clock import LoopClock, current_clock
from turnwise.core.errors import FOREIGN_ERRORS, EnvironmentFailure, InfrastructureFailure, RewardFailure, UserError
from turnwise.core.protocols import GroupReward, Reward, RewardResult
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rewards.rubric import Rubric, StateDescription, Submission

ENV, FORMAT = "env", "format"
"""Names of the environment's reward and of the format penalty."""
MIN_MEMBERS = 2
"""Members that a group needs to compare anything."""
MAX_CHECKS = 100
"""Times that a call's clock is checked within one time limit, at most."""

Subject = TypeVar("Subject")
TurnRewards = dict[str, tuple[float, ...]]
"""Turn rewards by the name of the reward."""

_first_part_only: ContextVar[bool] = ContextVar("first_part_only", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScore:
    reward: float
    success: bool
    parts: Mapping[str, float]
    """Scores by name, before weighting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSet:
    """The rewards of a run's trajectories."""

    format_penalty: float
    """Subtracted for each turn that the environment called invalid; part of the environment's reward."""
    functions: Mapping[str, Reward]
    weights: Mapping[str, float]
    """Weight of the environment's reward (`ENV`), of each function and of each judge."""
    judges: Mapping[str, GroupReward] = field(default_factory=dict)
    """Judges have their own time limits."""
    timeout_s: float = math.inf
    """Time limit of one function call, measured by `CallTimeouts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroups:
    groups: list[Group]
    failures: tuple[str, ...] = ()
    """Reasons of groups that could not be scored. They are not trained on."""
    dropped_members: int = 0
    """Members that have no reward and are in none of the groups."""
    last_failure: str = ""
    """Reason of the last dropped member."""


def first_part_only() -> AbstractContextManager[None]:
    """Run only the first part of rubrics, for episodes of which only success is read: others may cost money."""
    return set_in_block(_first_part_only, True)


async def score_submission(rubric: Rubric, submission: Submission, success_at: float = 1.0) -> AnswerScore:
    """Run the parts of a rubric concurrently. The episode succeeds if the first part scores `success_at` or more.

    A part that fails cancels the others: the episode is retried.
    """
    parts = dict(islice(rubric.parts.items(), 1)) if _first_part_only.get() else rubric.parts
    scores = await _gather_scores({name: _score_part(name, part, submission) for name, part in parts.items()})
    (reward,) = _weighted_sum({name: (score,) for name, score in scores.items()}, rubric.weights)
    return AnswerScore(reward=reward, success=next(iter(scores.values())) >= success_at, parts=scores)


async def score_states(
    judge: Callable[[StateDescription], Awaitable[float]], descriptions: Mapping[str, StateDescription]
) -> dict[str, float]:
    """Return the judge's scores by the names of the descriptions; 0 if only the episode's success is read.

    A description without a verdict raises RewardFailure: the episode is retried.
    """
    if _first_part_only.get():
        return dict.fromkeys(descriptions, 0.0)
    return await _gather_scores(
        {name: _score_part(name, judge, description) for name, description in descriptions.items()}
    )


async def _gather_scores(scores: Mapping[str, Coroutine[Any, Any, float]]) -> dict[str, float]:
    """Await all scores concurrently; the first failure cancels the others."""
    tasks: dict[str, asyncio.Task[float]] = {}
    try:
        with _noting_late(tasks):
            async with asyncio.TaskGroup() as group:
                for name, score in scores.items():
                    tasks[name] = group.create_task(score)
    except* (UserError, EnvironmentFailure, InfrastructureFailure) as failures:
        raise failures.exceptions[0] from None
    return {name: task.result() for name, task in tasks.items()}


@contextmanager
def _noting_late(tasks: Mapping[str, asyncio.Task[float]]) -> Iterator[None]:
    """Add a note to a cancellation that names the unfinished parts, for the report of a time-out."""
    try:
        yield
    except asyncio.CancelledError as cancelled:
        if late := [name for name, task in tasks.items() if task.cancelled()]:
            cancelled.add_note(f"the reward {' and '.join(late)}")
        raise


async def _score_part(name: str, part: Callable[[Subject], Awaitable[float]], subject: Subject) -> float:
    try:
        score = float(await part(subject))
    except (UserError, EnvironmentFailure):
        raise
    except (InfrastructureFailure, OSError) as failure:
        raise _reward_failure(name, failure) from failure
    except FOREIGN_ERRORS as error:
        raise EnvironmentFailure(f"the reward {name} failed: {type(error).__name__}: {error}") from error
    if not math.isfinite(score):
        raise EnvironmentFailure(f"the reward {name} gave {score}")
    return score


def score_trajectory(trajectory: Trajectory, format_penalty: float) -> Trajectory:
    """Set turn rewards to the environment's, minus `format_penalty` for each invalid turn."""
    penalties = [format_penalty if turn.invalid else 0.0 for turn in trajectory.turns]
    env = [turn.reward for turn in trajectory.turns]
    named: Counter[str] = Counter()
    for turn in trajectory.turns:
        named.update(turn.info.get("rewards", {}))
    return replace(
        trajectory,
        turn_rewards=tuple(reward - penalty for reward, penalty in zip(env, penalties, strict=True)),
        rewards={**named, ENV: sum(env), FORMAT: 0.0 - sum(penalties)},
    )


def score_group(group: Group, format_penalty: float) -> Group:
    scored = [score_trajectory(trajectory, format_penalty) for trajectory in group.trajectories]
    return replace(group, trajectories=tuple(scored))


def count_members(groups: Sequence[Group]) -> int:
    return sum(len(group.trajectories) for group in groups)


async def score_groups(groups: Sequence[Group], rewards: RewardSet) -> ScoredGroups:
    """Score all members of all groups; calls of functions and judges run concurrently."""
    scored = [score_group(group, rewards.format_penalty) for group in groups]
    if not rewards.functions and not rewards.judges and rewards.weights[ENV] == 1.0:
        return ScoredGroups(groups=scored)

    timeouts = CallTimeouts(rewards.timeout_s)

    async def score(group: Group) -> tuple[Group | None, str]:
        try:
            return await _add_rewards(group, rewards, timeouts)
        except RewardFailure as failure:
            return None, str(failure)

    with set_in_block(blocking_limit, rewards.timeout_s), allow_interrupts():
        results = await asyncio.gather(*map(score, scored))
    complete = [group for group, _ in results if group is not None]
    return ScoredGroups(
        groups=complete,
        failures=tuple(reason for group, reason in results if group is None),
        dropped_members=count_members(scored) - count_members(complete),
        last_failure=next((reason for _, reason in reversed(results) if reason), ""),
    )


async def _add_rewards(group: Group, rewards: RewardSet, timeouts: "CallTimeouts") -> tuple[Group, str]:
    """Return the group with the weighted sum as its turn rewards, and why the last dropped member has none.

    A member for which a function or a judge gave no reward is dropped; the others are compared without it.
    """
    by_functions, by_judges = await asyncio.gather(
        asyncio.gather(*(_call_functions(member, rewards, timeouts) for member in group.trajectories)),
        asyncio.gather(*(_call_judge(name, judge, group) for name, judge in rewards.judges.items())),
    )
    members, reason = [], ""
    for member, *results in zip(group.trajectories, by_functions, *by_judges, strict=True):
        if failures := [result for result in results if isinstance(result, RewardFailure)]:
            reason = str(failures[0])
            continue
        named = {name: turns for result in results if isinstance(result, dict) for name, turns in result.items()}
        totals = {name: sum(turns) for name, turns in named.items()}
        turn_rewards = _weighted_sum({ENV: member.turn_rewards, **named}, rewards.weights)
        members.append(replace(member, turn_rewards=turn_rewards, rewards={**member.rewards, **totals}))
    size = len(group.trajectories)
    if len(members) < min(MIN_MEMBERS, size):
        raise RewardFailure(f"{size - len(members)} of a group's {size} members have no reward: {reason}")
    return replace(group, trajectories=tuple(members)), reason


async def _call_functions(
    trajectory: Trajectory, rewards: RewardSet, timeouts: "CallTimeouts"
) -> TurnRewards | RewardFailure:
    results: TurnRewards = {}
    for name, function in rewards.functions.items():
        try:
            async with timeouts.limit() as timeout:
                results[name] = (await function(trajectory)).turn_rewards
        except InfrastructureFailure as failure:
            return _reward_failure(name, failure)
        except TimeoutError:
            if not timeout.expired():
                raise
            limit = f"rollout.timeout_s {rewards.timeout_s:g}"
            return RewardFailure(f"the reward {name} returned nothing within {limit}: raise the limit")
    return results


async def _call_judge(name: str, judge: GroupReward, group: Group) -> list[TurnRewards | RewardFailure]:
    """Return one result per member."""
    try:
        results = await judge(group)
    except InfrastructureFailure as failure:
        raise _reward_failure(name, failure) from failure
    return [
        {name: result.turn_rewards} if isinstance(result, RewardResult) else _reward_failure(name, result)
        for result in results
    ]


def _reward_failure(name: str, failure: Exception) -> RewardFailure:
    return RewardFailure(f"the reward {name}: {failure}")


def _weighted_sum(rewards: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> tuple[float, ...]:
    """Sum `weight * reward` over the rewards, for each turn."""
    weighted = [[weights[name] * reward for reward in turns] for name, turns in rewards.items()]
    return tuple(map(sum, zip(*weighted, strict=True)))


class CallTimeouts:
    """A time limit for concurrent reward calls, restarted whenever another call has returned in the meantime.

    Calls may wait for each other, for example for a lock or a small server: none is late while others make progress.
    Time in which other calls hold the event loop does not count.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._returned = 0

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Raise TimeoutError if the call takes too long; the yielded time-out has then expired."""
        clock, loop = LoopClock(), asyncio.get_running_loop()
        began, returned = clock.now(), self._returned
        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            nonlocal began, returned, timer
            if self._returned > returned:
                began, returned = clock.now(), self._returned
            if (left := began + self._seconds - clock.now()) > 0:
                timer = loop.call_later(max(left, self._seconds / MAX_CHECKS), check)
            else:
                timeout.reschedule(loop.time())

        owner = current_clock.set(clock)
        try:
            async with asyncio.timeout(None) as timeout:
                if self._seconds < math.inf:
                    timer = loop.call_later(self._seconds, check)
                try:
                    yield timeout
                finally:
                    if timer is not None:
                        timer.cancel()
            self._returned += 1
        finally:
            current_clock.reset(owner)
