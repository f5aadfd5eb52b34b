"""MiniGrid, the navigation tasks of the Farama Foundation: rules in words, and shortest paths to the goal."""

from collections import deque
from typing import Any

MODULE = "minigrid"
PREFIXES = ("MiniGrid-", "BabyAI-")
"""Names of its environments, which are registered when the package is imported."""
RULES = (
    "Navigate a grid. You are the red triangle and look where it points; grey cells are walls. left and right turn you "
    "by 90 degrees, forward moves one cell, pickup, drop and toggle act on the cell in front of you."
)
MOVES = ("left", "right", "forward")
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""Column and row of one step, by the agent's direction."""

Pose = tuple[int, int, int]
"""Column, row, direction."""


def is_minigrid(name: str) -> bool:
    return name.startswith(PREFIXES)


def shortest_path(env: Any) -> list[str] | None:
    """Return the fewest turns and moves to a goal square, over free cells; None if there is no such path."""
    start: Pose = (int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir))
    paths: dict[Pose, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        pose = queue.popleft()
        cell = env.grid.get(pose[0], pose[1])
        if cell is not None and cell.type == "goal":
            return paths[pose]
        for move in MOVES:
            after = _after(env, pose, move)
            if after is not None and after not in paths:
                paths[after] = [*paths[pose], move]
                queue.append(after)
    return None


def _after(env: Any, pose: Pose, move: str) -> Pose | None:
    """Return where a move leads; None if that cell is blocked or ends the episode without success."""
    column, row, direction = pose
    if move != "forward":
        return column, row, (direction + (1 if move == "right" else -1)) % 4
    column, row = column + DIRECTIONS[direction][0], row + DIRECTIONS[direction][1]
    cell = env.grid.get(column, row)
    free = cell is None or (cell.can_overlap() and cell.type != "lava")
    return (column, row, direction) if free else None
