"""Evaluation: held-out tasks once each, success with its interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.core.task import Task
from turnwise.core.trajectory import Trajectory
from turnwise.evaluate.statistics import wilson
from turnwise.rollout.collect import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    trajectories: tuple[Trajectory, ...]
    errors: int
    """Episodes that broke and could not be run again: they are in no mean."""

    @property
    def episodes(self) -> int:
        return len(self.trajectories)

    @property
    def successes(self) -> int:
        return sum(trajectory.status.succeeded for trajectory in self.trajectories)

    @property
    def success(self) -> float:
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson, 95 %."""
        return wilson(self.successes, self.episodes)

    def metrics(self) -> dict[str, float]:
        low, high = self.interval
        turns = [turn for trajectory in self.trajectories for turn in trajectory.turns if not turn.aside]
        return {
            "eval/success": self.success,
            "eval/success_low": low,
            "eval/success_high": high,
            "eval/episodes": self.episodes,
            "eval/errors": self.errors,
            "eval/reward": sum(each.total_reward for each in self.trajectories) / self.episodes,
            "eval/turns": len(turns) / self.episodes,
            "eval/invalid": sum(turn.invalid for turn in turns) / max(1, len(turns)),
            "eval/sampled_tokens": sum(each.num_sampled for each in self.trajectories) / self.episodes,
        }


async def evaluate(
    collector: Collector, tasks: Sequence[Task], progress: Callable[[int, int], None] = lambda done, total: None
) -> Evaluation:
    """One episode a task. `round` is 0, so that policies compared on equal tasks meet equal random numbers."""
    collected = await collector.collect(tasks, group_size=1, round=0, progress=progress)
    trajectories = tuple(trajectory for group in collected.groups for trajectory in group.trajectories)
    return Evaluation(trajectories=trajectories, errors=collected.counts["members_given_up"])
