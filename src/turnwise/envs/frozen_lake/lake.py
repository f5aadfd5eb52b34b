"""Frozen lake maps: random generation and shortest paths."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from turnwise.envs.grid import Cell, neighbor
from turnwise.envs.shortest_path import search_path

MOVES = ("Left", "Down", "Right", "Up")
"""In circular order: slipping turns a move into one of its two neighbours."""


@dataclass(frozen=True, kw_only=True)
class Lake:
    size: int
    start: Cell
    goal: Cell
    holes: frozenset[Cell]

    def move(self, cell: Cell, direction: str) -> Cell:
        """Return the cell that a move from `cell` leads to; a move over the edge stays in place."""
        row, column = neighbor(cell, direction)
        return (row, column) if 0 <= row < self.size and 0 <= column < self.size else cell

    @cached_property
    def cell_names(self) -> tuple[tuple[str, ...], ...]:
        """Names of all cells without the player. Cached: read at every move."""
        cells = range(self.size)
        return tuple(tuple(self._cell_name((row, column)) for column in cells) for row in cells)

    def _cell_name(self, cell: Cell) -> str:
        return "goal" if cell == self.goal else "hole" if cell in self.holes else "ice"


def generate_lake(rng: random.Random, *, size: int, frozen: float, max_moves: int) -> Lake:
    """Draw lakes until the goal is within `max_moves` of the start. They may be neighbours."""
    cells = [(row, column) for row in range(size) for column in range(size)]
    while True:
        start, goal = rng.sample(cells, 2)
        holes = frozenset(cell for cell in cells if rng.random() >= frozen and cell not in (start, goal))
        lake = Lake(size=size, start=start, goal=goal, holes=holes)
        path = shortest_path(lake, start)
        if path is not None and len(path) <= max_moves:
            return lake


def shortest_path(lake: Lake, start: Cell, moves: Sequence[str] = MOVES) -> list[str] | None:
    """Find the shortest path to the goal; None if there is none. Assumes no slipping."""
    if start in lake.holes:
        return None

    def successors(cell: Cell) -> Iterator[tuple[str, Cell]]:
        for move in moves:
            if (target := lake.move(cell, move)) not in lake.holes:
                yield move, target

    return search_path(start, successors, lambda cell: cell == lake.goal)
