"""What each turn is worth: the environment's reward less the format penalty, and rewards of the user's, weighted.

Always computed from the turns' own rewards, so that nothing is counted twice however often a trajectory is scored.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.protocols import GroupReward, Reward
from turnwise.core.trajectory import Group, Trajectory

ENV, FORMAT = "env", "format"
FEWEST = 2
"""Members of which a group still compares something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    format_penalty: float
    """Subtracted once for each turn that the environment called invalid; part of the environment's reward."""
    functions: Mapping[str, Reward]
    weights: Mapping[str, float]
    """Of the environment's reward, by the name `ENV`, of each function's and each judge's."""
    judges: Mapping[str, GroupReward] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    groups: list[Group]
    failures: tuple[str, ...] = ()
    """Of groups that a reward failed to judge, why: they are not trained on."""


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


async def score_groups(groups: Sequence[Group], scoring: Scoring) -> Scored:
    """All members of all groups; functions and judges that wait for something wait together."""
    scored = [score_group(group, scoring.format_penalty) for group in groups]
    if not scoring.functions and not scoring.judges and scoring.weights[ENV] == 1.0:
        return Scored(groups=scored)

    async def score(group: Group) -> Group | str:
        try:
            return await _with_others(group, scoring)
        except InfrastructureFailure as failure:
            return str(failure)

    found = await asyncio.gather(*map(score, scored))
    return Scored(
        groups=[each for each in found if isinstance(each, Group)],
        failures=tuple(each for each in found if isinstance(each, str)),
    )


async def _with_others(group: Group, scoring: Scoring) -> Group:
    """Turn rewards weighted and added up; totals by name as they were before that.

    A member that a function or a judge had no verdict on is left out: the others are compared without it.
    """
    own, judged = await asyncio.gather(
        asyncio.gather(*(_of_functions(member, scoring) for member in group.trajectories)),
        asyncio.gather(*(judge(group) for judge in scoring.judges.values())),
    )
    members, size, why = [], len(group.trajectories), ""
    for place, (member, given) in enumerate(zip(group.trajectories, own, strict=True)):
        verdicts = [found.turn_rewards for verdict in judged if (found := verdict[place]) is not None]
        if isinstance(given, InfrastructureFailure):
            why = f": {given}"
        elif len(verdicts) == len(judged):
            parts = {ENV: member.turn_rewards, **given, **dict(zip(scoring.judges, verdicts, strict=True))}
            members.append(_summed(member, parts, scoring.weights))
    if len(members) < min(FEWEST, size):
        raise InfrastructureFailure(f"there is no verdict on {size - len(members)} of a group's {size} members{why}")
    return replace(group, trajectories=tuple(members))


async def _of_functions(
    trajectory: Trajectory, scoring: Scoring
) -> dict[str, tuple[float, ...]] | InfrastructureFailure:
    try:
        return {name: (await function(trajectory)).turn_rewards for name, function in scoring.functions.items()}
    except InfrastructureFailure as failure:
        return failure


def _summed(trajectory: Trajectory, parts: Mapping[str, tuple[float, ...]], weights: Mapping[str, float]) -> Trajectory:
    weighted = [[weights[name] * reward for reward in rewards] for name, rewards in parts.items()]
    totals = {name: sum(rewards) for name, rewards in parts.items() if name != ENV}
    summed = tuple(map(sum, zip(*weighted, strict=True)))
    return replace(trajectory, turn_rewards=summed, rewards={**trajectory.rewards, **totals})
