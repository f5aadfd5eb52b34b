"""Metrics of one step's rollout."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from turnwise.algos.diagnostics import measure_repetition
from turnwise.core.trajectory import Group, Status, Stop, Trajectory, Turn
from turnwise.data.decisions import turn_actions

REPORTED = tuple(status for status in Status if not (status.ongoing or status.succeeded))


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Compute flat metrics of a step's scored groups. A mean over nothing is left out.

    Success comes from `Trajectory.status` alone. Dropped episodes are not in the groups.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        "rollout/groups": float(len(groups)),
        "rollout/episodes": float(len(trajectories)),
        **_outcomes(trajectories),
        **_by_environment(trajectories),
        **_group_spread(groups),
        **_repetition(groups),
        **_action_entropy(groups),
        **_lengths(trajectories),
        **_statuses(trajectories),
    }


def staleness_metrics(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Return how many versions older than `version` the weights were that sampled the tokens: mean and maximum."""
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    ages = [version - sampled for turn in turns for sampled in turn.policy_versions]
    return {"rollout/staleness": _mean(ages), "rollout/staleness_max": float(max(ages))} if ages else {}


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
    """Return a reward's values over the environments that have it; 0 for episodes that ended before it."""
    environments = {trajectory.task.env for trajectory in trajectories if name in trajectory.rewards}
    return [trajectory.rewards.get(name, 0.0) for trajectory in trajectories if trajectory.task.env in environments]


def _by_environment(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return success and reward per environment and role if there are several, e.g. `rollout/success/sokoban`."""
    names = sorted({trajectory.task.label for trajectory in trajectories})
    if len(names) < 2:
        return {}
    metrics: dict[str, float] = {}
    for name in names:
        members = [trajectory for trajectory in trajectories if trajectory.task.label == name]
        metrics[f"rollout/episodes/{name}"] = float(len(members))
        metrics[f"rollout/success/{name}"] = _mean(trajectory.status.succeeded for trajectory in members)
        metrics[f"rollout/reward/{name}"] = _mean(trajectory.total_reward for trajectory in members)
    return metrics


def _group_spread(groups: Sequence[Group]) -> dict[str, float]:
    """Return the spread of rewards within groups. A group with equal rewards has no relative advantage."""
    rewards_of_groups = [[trajectory.total_reward for trajectory in group.trajectories] for group in groups]
    comparable = [rewards for rewards in rewards_of_groups if len(rewards) > 1]
    if not comparable:
        return {}
    return {
        "rollout/reward_group_std": _mean(_std(rewards) for rewards in comparable),
        "rollout/zero_std_groups": _mean(min(rewards) == max(rewards) for rewards in comparable),
    }


def _repetition(groups: Sequence[Group]) -> dict[str, float]:
    """Return how similar the members of a group are, which rises as a policy collapses."""
    similarity = measure_repetition([[_sampled(trajectory) for trajectory in group.trajectories] for group in groups])
    if similarity.overlap is None or similarity.copies is None:
        return {}
    return {"rollout/repetition": similarity.overlap, "rollout/copies": similarity.copies}


def _action_entropy(groups: Sequence[Group]) -> dict[str, float]:
    """Return how varied the actions are that members of a group take in the same state, whatever their spelling.

    The entropy of tokens may be high in text that decides nothing.
    """
    total, decisions = 0.0, 0
    for group in groups:
        taken: dict[str, Counter[tuple[str, ...]]] = {}
        for trajectory in group.trajectories:
            for _, state, actions in turn_actions(trajectory):
                taken.setdefault(state, Counter())[actions] += 1
        for counts in taken.values():
            visits = counts.total()
            if visits > 1:
                total += sum(count * math.log(visits / count) for count in counts.values())
                decisions += visits
    return {"rollout/action_entropy": total / decisions} if decisions else {}


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
        "rollout/invalid": _mean(turn.invalid for turn in turns if not turn.is_summary),
        "rollout/length_stops": _mean(turn.stop is Stop.LENGTH for turn in turns),
        **_calls(turns, len(trajectories)),
    }


def _calls(turns: Sequence[Turn], episodes: int) -> dict[str, float]:
    """Return tool calls per episode and the fraction that failed by the agent's fault; nothing without calls."""
    calls = [call for turn in turns for call in turn.info.get("calls", ())]
    if not calls:
        return {}
    failed = _mean(call["failed"] for call in calls)
    return {"rollout/calls": len(calls) / episodes, "rollout/calls_failed": failed}


def _statuses(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the fraction of each final status except success, e.g. `rollout/truncated_tokens`.

    Played episodes have no limit of imported ones, so it is reported only if it occurs.
    """
    counts = Counter(trajectory.status for trajectory in trajectories)
    reported = [status for status in REPORTED if counts[status] or status is not Status.TRUNCATED_LIMIT]
    return {f"rollout/{status.value}": counts[status] / max(len(trajectories), 1) for status in reported}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _std(values: Sequence[float]) -> float:
    """Return the population standard deviation: these are all episodes of the step."""
    mean = _mean(values)
    return math.sqrt(_mean((value - mean) ** 2 for value in values))
