"""What each turn is worth: the environment's reward less the format penalty, and rewards of the user's, weighted.

Always computed from the turns' own rewards, so that nothing is counted twice however often a trajectory is scored.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from turnwise.core.protocols import Reward
from turnwise.core.trajectory import Group, Trajectory

ENV, FORMAT = "env", "format"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    format_penalty: float
    """Subtracted once for each turn that the environment called invalid; part of the environment's reward."""
    functions: Mapping[str, Reward]
    weights: Mapping[str, float]
    """Of the environment's reward, by the name `ENV`, and of each function's."""


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


async def score_groups(groups: Sequence[Group], scoring: Scoring) -> list[Group]:
    """All members of all groups; functions that wait for something wait together."""
    scored = [score_group(group, scoring.format_penalty) for group in groups]
    if not scoring.functions and scoring.weights[ENV] == 1.0:
        return scored

    async def score(group: Group) -> Group:
        members = [_with_functions(trajectory, scoring) for trajectory in group.trajectories]
        return replace(group, trajectories=tuple(await asyncio.gather(*members)))

    return list(await asyncio.gather(*map(score, scored)))


async def _with_functions(trajectory: Trajectory, scoring: Scoring) -> Trajectory:
    """Turn rewards weighted and added up; totals by name as they were before that."""
    parts = {ENV: trajectory.turn_rewards}
    for name, function in scoring.functions.items():
        parts[name] = (await function(trajectory)).turn_rewards
    weighted = [[scoring.weights[name] * reward for reward in rewards] for name, rewards in parts.items()]
    totals = {name: sum(rewards) for name, rewards in parts.items() if name != ENV}
    summed = tuple(map(sum, zip(*weighted, strict=True)))
    return replace(trajectory, turn_rewards=summed, rewards={**trajectory.rewards, **totals})
