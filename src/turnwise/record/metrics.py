"""What one step's rollout says about itself."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from turnwise.algos.diagnostics import repetition
from turnwise.core.trajectory import Group, Status, Stop, Trajectory, Turn

LARGEST = 1e100
"""Beyond, differences of numbers may be infinite."""
REPORTED = tuple(status for status in Status if not (status.ongoing or status.succeeded))


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Flat metrics of a step's groups, after scoring. A mean over nothing is left out, not 0 and not NaN.

    Success comes from `Trajectory.status` alone. Members that broke (`Status.errored`) are counted and enter
    no mean.
    """
    everyone = [trajectory for group in groups for trajectory in group.trajectories]
    sound = [trajectory for trajectory in everyone if not trajectory.status.errored]
    return {
        "rollout/groups": float(len(groups)),
        "rollout/episodes": float(len(everyone)),
        **_outcomes(sound),
        **_by_environment(sound),
        **_group_spread(groups),
        **_repetition(groups),
        **_lengths(sound),
        **_statuses(everyone),
    }


def _outcomes(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    if not trajectories:
        return {}
    rewards = [trajectory.total_reward for trajectory in trajectories]
    names = sorted({name for trajectory in trajectories for name in trajectory.rewards})
    return {
        "rollout/success": _mean(trajectory.status.succeeded for trajectory in trajectories),
        "rollout/reward": _mean(rewards),
        "rollout/reward_std": _std(rewards),
        **{f"reward/{name}": _mean(_by_name(trajectories, name)) for name in names},
    }


def _by_name(trajectories: Sequence[Trajectory], name: str) -> list[float]:
    """A reward's values in the environments that have it: 0 where an episode never came to it, as to an answer."""
    own = {trajectory.task.env for trajectory in trajectories if name in trajectory.rewards}
    return [trajectory.rewards.get(name, 0.0) for trajectory in trajectories if trajectory.task.env in own]


def _by_environment(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Where a run has more than one: success and reward of each, as `rollout/success/sokoban`."""
    names = sorted({trajectory.task.env for trajectory in trajectories})
    if len(names) < 2:
        return {}
    found: dict[str, float] = {}
    for name in names:
        own = [trajectory for trajectory in trajectories if trajectory.task.env == name]
        found[f"rollout/episodes/{name}"] = float(len(own))
        found[f"rollout/success/{name}"] = _mean(trajectory.status.succeeded for trajectory in own)
        found[f"rollout/reward/{name}"] = _mean(trajectory.total_reward for trajectory in own)
    return found


def _group_spread(groups: Sequence[Group]) -> dict[str, float]:
    """How much groups have to compare: a relative advantage learns nothing from one whose rewards are all equal."""
    rewards_of_groups = [[t.total_reward for t in group.trajectories if not t.status.errored] for group in groups]
    comparable = [rewards for rewards in rewards_of_groups if len(rewards) > 1]
    if not comparable:
        return {}
    return {
        "rollout/reward_group_std": _mean(_std(rewards) for rewards in comparable),
        "rollout/zero_std_groups": _mean(min(rewards) == max(rewards) for rewards in comparable),
    }


def _repetition(groups: Sequence[Group]) -> dict[str, float]:
    """How alike members of a group are: what they share rises as a policy collapses."""
    found = repetition([[_sampled(each) for each in group.trajectories] for group in groups])
    if found.overlap is None or found.copies is None:
        return {}
    return {"rollout/repetition": found.overlap, "rollout/copies": found.copies}


def _sampled(trajectory: Trajectory) -> list[int]:
    return [token for turn in trajectory.turns for token in turn.action_ids]


def _lengths(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    sampled = sum(len(turn.action_ids) for turn in turns)
    totals = {
        "rollout/sampled_tokens": float(sampled),
        "rollout/context_tokens": float(sum(len(turn.context_ids) for turn in turns)),
    }
    if not turns:
        return totals
    return {
        **totals,
        "rollout/turns": _mean(trajectory.num_turns for trajectory in trajectories),
        "rollout/response_tokens": sampled / len(trajectories),
        "rollout/turn_tokens": sampled / len(turns),
        "rollout/invalid": _mean(turn.invalid for turn in turns if not turn.aside),
        "rollout/length_stops": _mean(turn.stop is Stop.LENGTH for turn in turns),
        **_calls(turns, len(trajectories)),
    }


def _calls(turns: Sequence[Turn], episodes: int) -> dict[str, float]:
    """Of tools: how many an episode, and the share that failed by the agent's own fault. Empty where none was made."""
    calls = [call for turn in turns for call in turn.info.get("calls", ())]
    if not calls:
        return {}
    failed = _mean(call["failed"] for call in calls)
    return {"rollout/calls": len(calls) / episodes, "rollout/calls_failed": failed}


def _statuses(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The share of each way to end but success, as `rollout/truncated_tokens`."""
    counts = Counter(trajectory.status for trajectory in trajectories)
    return {f"rollout/{status.value}": counts[status] / max(len(trajectories), 1) for status in REPORTED}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _std(values: Sequence[float]) -> float:
    """Of the population: these are all the episodes that there are."""
    mean = _mean(values)
    return math.sqrt(_mean((value - mean) ** 2 for value in values))


def finite_number(value: Any) -> float | None:
    """A number of a row that can be drawn; None for text, null, and the words that stand for NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) <= LARGEST else None
