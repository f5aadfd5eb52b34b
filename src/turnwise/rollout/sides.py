"""Which tasks are drawn for games of two sides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnwise.core.task import Task
from turnwise.envs.games.table import as_side
from turnwise.rollout.curriculum import Measured
from turnwise.rollout.tasks import TaskSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SidedTasks(TaskSource):
    """Every other task is one of the second side."""

    both: bool
    """The tasks are drawn in twos, the two sides of a match; else the sides of different ones take turns."""
    random_moves: int = 0
    """Of the training tasks: held-out ones begin as the game does."""

    def training(self, step: int, count: int, start: int = 0, measured: Measured | None = None) -> list[Task]:
        many = 2 if self.both else 1
        drawn = TaskSource.training(self, step, count // many, start // many, measured)
        opened = [replace(task, params={**task.params, "random_moves": self.random_moves}) for task in drawn]
        return sided([task for task in opened for _ in range(many)], start)


def sided(tasks: Sequence[Task], start: int = 0) -> list[Task]:
    """The tasks with the sides in turn, counted from `start`."""
    return [as_side(task, number % 2) for number, task in enumerate(tasks, start)]
