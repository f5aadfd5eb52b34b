"""Frozen lake on random solvable maps: reach the goal, avoid the holes; optionally slippery."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any

from pydantic import Field

from turnwise.core.messages import Content, Picture
from turnwise.envs.grid import Cell, cell_text, grid_text, legend, neighbor
from turnwise.envs.picture_env import PictureEnv
from turnwise.envs.shortest_path import search_path
from turnwise.envs.text_env import Outcome, StrictParams, goes_on, lost, won
from turnwise.settings.section import Share

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


SYMBOLS = {"player": "P", "ice": "_", "hole": "O", "goal": "G", "player_in_hole": "X", "player_on_goal": "√"}

PICTURE_LEGEND = "The image shows the player, the goal (a red flag), holes (dark water) and ice."


def default_frozen_share(params: dict[str, Any]) -> float:
    """The share that published results use with and without slipping."""
    return 0.8 if params["slippery"] else 0.9


class FrozenLake(PictureEnv):
    """Walk over the ice to the goal. A hole ends the game."""

    split_start_states = True
    max_turns = 5
    max_actions_per_turn = 5
    max_actions: int | None = 10
    action_names = MOVES
    plain_cells = frozenset({"ice"})

    class Params(StrictParams):
        size: Annotated[int, Field(ge=4, le=8)] = 4
        """Rows and columns, 4 to 8."""
        slippery: bool = False
        """Moves slip: one third go as asked, one third to each side."""
        frozen: Annotated[Share, Field(default_factory=default_frozen_share)]
        """Probability that a cell is ice rather than a hole. Default: 0.9, or 0.8 if slippery."""
        goal_reward: float = 1.0
        """Reward of reaching the goal, the only reward."""

    params: Params

    def rules(self) -> str:
        slip = "The ice is slippery: 1/3 of moves go as asked, 1/3 to each side." if self.params.slippery else ""
        key = legend(SYMBOLS) if self.shows_text else PICTURE_LEGEND
        return "\n".join(line for line in (super().rules(), slip, key) if line)

    def reset(self, rng: random.Random) -> Content:
        self.lake = generate_lake(rng, size=self.params.size, frozen=self.params.frozen, max_moves=self.action_budget)
        self.player = self.lake.start
        return self.show(self.state_key())

    def step(self, action: str) -> Outcome:
        self.player = self.lake.move(self.player, self._slip(action))
        if self.player == self.lake.goal:
            return won(self.show(self.state_key()), self.params.goal_reward)
        seen = self.show(self.state_key())
        return lost(seen) if self.player in self.lake.holes else goes_on(seen)

    def _slip(self, move: str) -> str:
        if not self.params.slippery:
            return move
        return MOVES[(MOVES.index(move) + self.rng.choice((-1, 0, 1))) % len(MOVES)]

    def solve(self) -> list[str] | None:
        """The shortest path without slipping; on slippery ice, call it again after every move."""
        return shortest_path(self.lake, self.player)

    def explain(self, actions: Sequence[str]) -> str:
        return f"Me {cell_text(self.player)}, goal {cell_text(self.lake.goal)}. Next: {', '.join(actions)}."

    def draw(self) -> Picture:
        return draw_lake(self.lake, self.player)

    def state_key(self) -> str:
        return lake_text(self.lake, self.player)


@lru_cache(maxsize=4096)
def draw_lake(lake: Lake, player: Cell) -> Picture:
    """Cached: asked for several times per turn."""
    row, column = player
    rows = list(lake.cell_names)
    name = {"goal": "player_on_goal", "hole": "player_in_hole", "ice": "player"}[rows[row][column]]
    rows[row] = (*rows[row][:column], name, *rows[row][column + 1 :])
    return Picture(rows=tuple(rows))


@lru_cache(maxsize=4096)
def lake_text(lake: Lake, player: Cell) -> str:
    return grid_text(draw_lake(lake, player).rows, SYMBOLS)
