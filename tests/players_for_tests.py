"""Players of the tasks of self-play."""

from turnwise.core.task import Task
from turnwise.envs.games.selfplay import BEGINS


def player_of(task: Task) -> int:
    """Return the player, 0 or 1, whose episode this task is."""
    return BEGINS.index(task.params["begins"])
