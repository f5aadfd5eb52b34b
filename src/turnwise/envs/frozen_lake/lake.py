"""Lakes: made at random, and walked by the shortest way."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from turnwise.envs.grid import Cell, neighbor

MOVES = ("Left", "Down", "Right", "Up")
"""In a circle: the neighbours of a move are the two that a slip may turn it into."""


@dataclass(frozen=True, kw_only=True)
class Lake:
    size: int
    start: Cell
    goal: Cell
    holes: frozenset[Cell]

    def after(self, cell: Cell, move: str) -> Cell:
        """Where a move leads; over the edge it leads nowhere."""
        row, column = neighbor(cell, move)
        return (row, column) if 0 <= row < self.size and 0 <= column < self.size else cell

    @cached_property
    def ground(self) -> tuple[tuple[str, ...], ...]:
        """The name of every cell without the player; asked for at every move, so it is made once."""
        cells = range(self.size)
        return tuple(tuple(self._name((row, column)) for column in cells) for row in cells)

    def _name(self, cell: Cell) -> str:
        return "goal" if cell == self.goal else "hole" if cell in self.holes else "ice"


def generate_lake(rng: random.Random, *, size: int, frozen: float, longest: int) -> Lake:
    """Draws lakes until the goal can be reached in `longest` moves: start and goal side by side come up often."""
    cells = [(row, column) for row in range(size) for column in range(size)]
    while True:
        start, goal = rng.sample(cells, 2)
        holes = frozenset(cell for cell in cells if rng.random() >= frozen and cell not in (start, goal))
        lake = Lake(size=size, start=start, goal=goal, holes=holes)
        way = shortest_path(lake, start)
        if way is not None and len(way) <= longest:
            return lake


def shortest_path(lake: Lake, start: Cell, moves: Sequence[str] = MOVES) -> list[str] | None:
    """The shortest way from `start` to the goal if no move slips; None if there is none."""
    if start in lake.holes:
        return None
    ways: dict[Cell, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if cell == lake.goal:
            return ways[cell]
        for move in moves:
            after = lake.after(cell, move)
            if after not in ways and after not in lake.holes:
                ways[after] = [*ways[cell], move]
                queue.append(after)
    return None
