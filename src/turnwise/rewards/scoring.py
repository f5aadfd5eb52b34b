"""What each turn is worth: the environment's reward, minus the format penalty.

Always computed from the turns' own rewards, so that nothing is counted twice however often a trajectory is scored.
"""

from dataclasses import replace

from turnwise.core.trajectory import Group, Trajectory


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
