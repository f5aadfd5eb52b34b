"""What each turn is worth: the environment's reward, minus the format penalty, plus weighted reward functions.

Always computed from the turns' own rewards, so that nothing is counted twice however often a trajectory is scored.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from turnwise.core.protocols import Reward, RewardResult
from turnwise.core.trajectory import Group, Trajectory

RESERVED = ("env", "format")
"""Names that scoring itself uses in `Trajectory.rewards`."""


def score_trajectory(trajectory: Trajectory, format_penalty: float) -> Trajectory:
    """The environment's rewards, minus `format_penalty` once for each turn that the environment called invalid."""
    penalties = [format_penalty if turn.invalid else 0.0 for turn in trajectory.turns]
    env = [turn.reward for turn in trajectory.turns]
    return replace(
        trajectory,
        turn_rewards=tuple(reward - penalty for reward, penalty in zip(env, penalties, strict=True)),
        rewards={"env": sum(env), "format": 0.0 - sum(penalties)},
    )


def score_group(group: Group, format_penalty: float) -> Group:
    return replace(
        group,
        trajectories=tuple(score_trajectory(trajectory, format_penalty) for trajectory in group.trajectories),
    )


async def apply_rewards(group: Group, rewards: Mapping[str, tuple[Reward, float]], format_penalty: float) -> Group:
    """`score_group`, then `weight` times each reward function's turn rewards on top.

    `Trajectory.rewards` holds each function's total before its weight. All calls run at once. A call that fails
    fails the group: a judge that cannot be reached is no reward of 0.
    """
    if taken := sorted(set(RESERVED) & set(rewards)):
        raise ValueError(f"a reward cannot be named {taken[0]}: scoring uses that name itself")
    scored = score_group(group, format_penalty)
    calls = [reward(trajectory) for trajectory in scored.trajectories for reward, _ in rewards.values()]
    answers = await asyncio.gather(*calls, return_exceptions=True)  # waits for all, so that no call outlives a failure
    results = iter(_raise_first(answers))
    weights = {name: weight for name, (_, weight) in rewards.items()}
    members = [{name: next(results) for name in rewards} for _ in scored.trajectories]
    return replace(
        scored,
        trajectories=tuple(
            _add(trajectory, by_name, weights) for trajectory, by_name in zip(scored.trajectories, members, strict=True)
        ),
    )


def _raise_first(answers: Sequence[RewardResult | BaseException]) -> list[RewardResult]:
    results = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        results.append(answer)
    return results


def _add(trajectory: Trajectory, by_name: Mapping[str, RewardResult], weights: Mapping[str, float]) -> Trajectory:
    turn_rewards = list(trajectory.turn_rewards)
    for name, result in by_name.items():
        if len(result.turn_rewards) != len(turn_rewards):
            raise ValueError(f"reward {name} gave {len(result.turn_rewards)} values for {len(turn_rewards)} turns")
        if not all(map(math.isfinite, result.turn_rewards)):
            raise ValueError(f"reward {name} gave a value that is no finite number: {result.turn_rewards}")
        for turn, value in enumerate(result.turn_rewards):
            turn_rewards[turn] += weights[name] * value
    totals = {name: sum(result.turn_rewards) for name, result in by_name.items()}
    return replace(trajectory, turn_rewards=tuple(turn_rewards), rewards={**trajectory.rewards, **totals})
