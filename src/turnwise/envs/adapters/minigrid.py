"""MiniGrid, the navigation tasks of the Farama Foundation: rules and states in words, shortest paths to the goal."""

from collections.abc import Iterator, Sequence
from typing import Any

from turnwise.envs.adapters.gymnasium_family import Family, Options
from turnwise.envs.shortest_path import search_path

PREFIXES = ("MiniGrid-", "BabyAI-")
"""Names of its environments, which are registered when the package is imported."""
RULES = (
    "Navigate a grid. {look}. left and right turn you by 90 degrees, forward moves one cell, pickup, drop and toggle "
    "act on the cell in front of you."
)
LOOK_OF_TEXT = "You look where {arrows} points; {symbols}"
LOOK_OF_IMAGE = "You are the red triangle and look where it points; grey cells are walls"
ARROWS = (">", "v", "<", "^")
"""The agent, by its direction."""
SYMBOLS = {
    "wall": "#",
    "floor": ".",
    "goal": "G",
    "lava": "~",
    "door": "D",
    "key": "K",
    "ball": "B",
    "box": "X",
}
"""Cells by the type of their object; those without one are floor."""
PLAIN = ("wall", "floor", "goal", "lava")
"""Types whose symbol says everything. Others have a color, and doors are open, closed or locked."""
OTHER = "?"
"""Objects of other types, as a package of its own may define them; they are listed below the grid."""
MOVES = ("left", "right", "forward")
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""Column and row of one step, by the agent's direction."""

Pose = tuple[int, int, int]
"""Column, row, direction."""
Place = tuple[int, int]
"""Row, column."""


class MiniGrid(Family):
    module = "minigrid"

    def rules(self, spec: Any, options: Options, *, text: bool, image: bool) -> str:
        symbols = ", ".join(f"{symbol} {name}" for name, symbol in SYMBOLS.items())
        looks = [LOOK_OF_TEXT.format(arrows=" ".join(ARROWS), symbols=symbols)] * text + [LOOK_OF_IMAGE] * image
        return RULES.format(look=". ".join(looks))

    def describe(self, env: Any, observation: Any) -> str:
        return f"{describe_grid(env.unwrapped)}\n{self.describe_hidden(env, observation)}"

    def describe_hidden(self, env: Any, observation: Any) -> str:
        lines = super().describe_hidden(env, observation), describe_carried(env.unwrapped)
        return "\n".join(line for line in lines if line)

    def shape(self, env: Any) -> tuple[int, int]:
        grid = env.unwrapped.grid
        return grid.height, grid.width

    def solve(self, env: Any, observation: Any, names: Sequence[str], success_at: float | None) -> list[str] | None:
        return shortest_path(env.unwrapped) if set(MOVES) <= set(names) else None


def describe_grid(env: Any) -> str:
    """Return the whole grid, a symbol per cell, and a line for each object with a color: `red key at row 2 col 3`."""
    objects, agent = _objects(env), (int(env.agent_pos[1]), int(env.agent_pos[0]))

    def symbol(at: Place) -> str:
        if at == agent:
            return ARROWS[int(env.agent_dir)]
        return SYMBOLS.get(objects[at].type, OTHER) if at in objects else SYMBOLS["floor"]

    rows = [" ".join(symbol((row, column)) for column in range(env.grid.width)) for row in range(env.grid.height)]
    colored = [
        f"{_describe_object(cell)} at row {row + 1} col {column + 1}"
        for (row, column), cell in objects.items()
        if cell.type not in PLAIN
    ]
    return "\n".join([*rows, *colored])


def _objects(env: Any) -> dict[Place, Any]:
    places = [(row, column) for row in range(env.grid.height) for column in range(env.grid.width)]
    return {(row, column): cell for row, column in places if (cell := env.grid.get(column, row)) is not None}


def describe_carried(env: Any) -> str:
    """Return the object that the agent carries, which no image shows; empty if there is none."""
    return "" if env.carrying is None else f"you carry: {_describe_object(env.carrying)}"


def _describe_object(cell: Any) -> str:
    if cell.type in PLAIN:
        return str(cell.type)
    state = ("locked " if cell.is_locked else "open " if cell.is_open else "closed ") if cell.type == "door" else ""
    return f"{state}{cell.color} {cell.type}"


def shortest_path(env: Any) -> list[str] | None:
    """Return the fewest turns and moves to a goal square, over free cells; None if there is no such path."""
    start: Pose = (int(env.agent_pos[0]), int(env.agent_pos[1]), int(env.agent_dir))

    def successors(pose: Pose) -> Iterator[tuple[str, Pose]]:
        return ((move, after) for move in MOVES if (after := _after(env, pose, move)) is not None)

    def is_goal(pose: Pose) -> bool:
        cell = env.grid.get(pose[0], pose[1])
        return cell is not None and cell.type == "goal"

    return search_path(start, successors, is_goal)


def _after(env: Any, pose: Pose, move: str) -> Pose | None:
    """Return where a move leads; None if that cell is blocked or ends the episode without success."""
    column, row, direction = pose
    if move != "forward":
        return column, row, (direction + (1 if move == "right" else -1)) % 4
    column, row = column + DIRECTIONS[direction][0], row + DIRECTIONS[direction][1]
    cell = env.grid.get(column, row)
    free = cell is None or (cell.can_overlap() and cell.type != "lava")
    return (column, row, direction) if free else None
