"""What each turn is worth: the environment's reward less the format penalty, and rewards of the user's, weighted.

Always computed from the turns' own rewards, so that nothing is counted twice however often a trajectory is scored.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from turnwise.core.blocking import allow_interrupts, blocking_limit
from turnwise.core.errors import InfrastructureFailure, RewardFailure
from turnwise.core.loop_clock import LoopClock, current_clock
from turnwise.core.protocols import GroupReward, Reward, RewardResult
from turnwise.core.trajectory import Group, Trajectory

ENV, FORMAT = "env", "format"
MIN_MEMBERS = 2
"""Members of which a group still compares something."""


MAX_CHECKS = 100
"""Looks at the clock while one limit passes, at most."""


class CallTimeouts:
    """Gives each of the calls `seconds`, which begin again whenever another call has returned in the meantime.

    Calls may wait for each other, as for a lock or a small server: none is too late while the others get on. Time in
    which other calls hold the event loop does not count either.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._returned = 0

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Raises TimeoutError where the call takes too long; what it yields has then expired."""
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
                cut.reschedule(loop.time())

        owner = current_clock.set(clock)
        try:
            async with asyncio.timeout(None) as cut:
                if self._seconds < math.inf:
                    timer = loop.call_later(self._seconds, check)
                try:
                    yield cut
                finally:
                    if timer is not None:
                        timer.cancel()
            self._returned += 1
        finally:
            current_clock.reset(owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    format_penalty: float
    """Subtracted once for each turn that the environment called invalid; part of the environment's reward."""
    functions: Mapping[str, Reward]
    weights: Mapping[str, float]
    """Of the environment's reward, by the name `ENV`, of each function's and each judge's."""
    judges: Mapping[str, GroupReward] = field(default_factory=dict)
    """They have time-outs of their own."""
    timeout_s: float = math.inf
    """Limit of one call of a function, as `CallTimeouts` measures it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroups:
    groups: list[Group]
    failures: tuple[str, ...] = ()
    """Of groups that a reward failed to judge, why: they are not trained on."""
    left_out: int = 0
    """Members that were to be scored and are in none of the groups."""
    last_failure: str = ""
    """What the last of them was left out for."""


def score_trajectory(trajectory: Trajectory, format_penalty: float) -> Trajectory:
    """The environment's rewards, minus `format_penalty` once for each turn that the environment called invalid."""
    penalties = [format_penalty if turn.invalid else 0.0 for turn in trajectory.turns]
    env = [turn.reward for turn in trajectory.turns]
    return replace(
        trajectory,
        turn_rewards=tuple(reward - penalty for reward, penalty in zip(env, penalties, strict=True)),
        rewards={**_parts(trajectory), ENV: sum(env), FORMAT: 0.0 - sum(penalties)},
    )


def _parts(trajectory: Trajectory) -> dict[str, float]:
    """What the environment named of its own reward, added up over the turns; `ENV` is all of it together."""
    totals: Counter[str] = Counter()
    for turn in trajectory.turns:
        totals.update(turn.info.get("rewards", {}))
    return dict(totals)


def score_group(group: Group, format_penalty: float) -> Group:
    scored = [score_trajectory(trajectory, format_penalty) for trajectory in group.trajectories]
    return replace(group, trajectories=tuple(scored))


async def score_groups(groups: Sequence[Group], scoring: Scoring) -> ScoredGroups:
    """All members of all groups; functions and judges that wait for something wait together."""
    scored = [score_group(group, scoring.format_penalty) for group in groups]
    if not scoring.functions and not scoring.judges and scoring.weights[ENV] == 1.0:
        return ScoredGroups(groups=scored)

    timeouts = CallTimeouts(scoring.timeout_s)

    async def score(group: Group) -> _Judged:
        try:
            return await _with_others(group, scoring, timeouts)
        except RewardFailure as failure:
            return _Judged(None, str(failure))

    token = blocking_limit.set(scoring.timeout_s)
    try:
        with allow_interrupts():
            found = await asyncio.gather(*map(score, scored))
    finally:
        blocking_limit.reset(token)
    judged = [each.group for each in found if each.group is not None]
    return ScoredGroups(
        groups=judged,
        failures=tuple(each.why for each in found if each.group is None),
        left_out=count_members(scored) - count_members(judged),
        last_failure=next((each.why for each in reversed(found) if each.why), ""),
    )


def count_members(groups: Sequence[Group]) -> int:
    return sum(len(group.trajectories) for group in groups)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A group, None where it is left out; and why it, or the last of its members that are left out, is so."""

    group: Group | None
    why: str


async def _with_others(group: Group, scoring: Scoring, timeouts: CallTimeouts) -> _Judged:
    """Turn rewards weighted and added up; totals by name as they were before that.

    A member that a function or a judge had no verdict on is left out: the others are compared without it.
    """
    own, judged = await asyncio.gather(
        asyncio.gather(*(_of_functions(member, scoring, timeouts) for member in group.trajectories)),
        asyncio.gather(*(_of_judge(name, judge, group) for name, judge in scoring.judges.items())),
    )
    members, size, why = [], len(group.trajectories), ""
    for member, given, *verdicts in zip(group.trajectories, own, *judged, strict=True):
        found = [given, *verdicts]
        parts = {
            name: rewards for each in found if not isinstance(each, RewardFailure) for name, rewards in each.items()
        }
        if failures := [each for each in found if isinstance(each, RewardFailure)]:
            why = str(failures[0])
        else:
            members.append(_summed(member, {ENV: member.turn_rewards, **parts}, scoring.weights))
    if len(members) < min(MIN_MEMBERS, size):
        raise RewardFailure(f"there is no verdict on {size - len(members)} of a group's {size} members: {why}")
    return _Judged(replace(group, trajectories=tuple(members)), why)


_Named = dict[str, tuple[float, ...]]
"""Turn rewards by the name of the reward."""


async def _of_functions(trajectory: Trajectory, scoring: Scoring, timeouts: CallTimeouts) -> _Named | RewardFailure:
    found: _Named = {}
    for name, function in scoring.functions.items():
        try:
            async with timeouts.limit() as cut:
                found[name] = (await function(trajectory)).turn_rewards
        except InfrastructureFailure as failure:
            return _of(name, failure)
        except TimeoutError:
            if not cut.expired():
                raise
            late = f"the reward {name} gave nothing within rollout.timeout_s {scoring.timeout_s:g}: raise it"
            return RewardFailure(late)
    return found


async def _of_judge(name: str, judge: GroupReward, group: Group) -> list[_Named | RewardFailure]:
    """One a member."""
    try:
        verdicts = await judge(group)
    except InfrastructureFailure as failure:
        raise _of(name, failure) from failure
    return [{name: each.turn_rewards} if isinstance(each, RewardResult) else _of(name, each) for each in verdicts]


def _of(name: str, failure: InfrastructureFailure) -> RewardFailure:
    return RewardFailure(f"the reward {name}: {failure}")


def _summed(trajectory: Trajectory, parts: Mapping[str, tuple[float, ...]], weights: Mapping[str, float]) -> Trajectory:
    weighted = [[weights[name] * reward for reward in rewards] for name, rewards in parts.items()]
    totals = {name: sum(rewards) for name, rewards in parts.items() if name != ENV}
    summed = tuple(map(sum, zip(*weighted, strict=True)))
    return replace(trajectory, turn_rewards=summed, rewards={**trajectory.rewards, **totals})
