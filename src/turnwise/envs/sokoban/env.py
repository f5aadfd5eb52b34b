"""Sokoban: push every box onto a target; a box that stands wrong cannot be pulled back."""

import random
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from turnwise.core.messages import Picture
from turnwise.envs.grid import DIRECTIONS, Cell, cell_text, grid_text, legend
from turnwise.envs.sokoban.level import generate_level, shortest_solution
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, goes_on, won

NAMES = ("wall", "empty", "target", "box_on_target", "box", "player", "player_on_target")
SYMBOLS = {
    "standard": dict(zip(NAMES, "#_O√XPS", strict=True)),
    "other": dict(zip(NAMES, "W.GCBA*", strict=True)),
}
"""Symbol sets; grid and legend are made of the same one."""


class Sokoban(TextEnv):
    """Push every box onto a target. You cannot pull."""

    split_start_states = True
    max_turns = 5
    max_actions_per_turn = 5
    max_actions = 10
    action_names = tuple(DIRECTIONS)

    class Params(StrictParams):
        size: Annotated[int, Field(ge=5, le=10)] = 6
        """Rows and columns, 5 to 10, the border of walls included."""
        boxes: Annotated[int, Field(ge=1, le=3)] = 1
        """1 to 3; as many targets."""
        symbols: Literal["standard", "other"] = "standard"
        """The symbol set of grid and legend."""
        observation: Literal["grid", "coordinates"] = "grid"
        """Coordinates: rows and columns of the pieces, in words."""
        step_reward: float = -0.1
        """Of every action."""
        box_on_reward: float = 1.0
        """Of a box pushed onto a target."""
        box_off_reward: float = -1.0
        """Of a box pushed off one."""
        solved_reward: float = 10.0
        """Besides the last box's."""

    params: Params

    def rules(self) -> str:
        if self.params.observation == "grid":
            return f"{super().rules()}\n{legend(SYMBOLS[self.params.symbols])}"
        last = self.params.size - 1
        return f"{super().rules()}\nCells are row,column from 0,0 at the top left to {last},{last}. The border is wall."

    def reset(self, rng: random.Random) -> str:
        self.level = generate_level(rng, size=self.params.size, boxes=self.params.boxes, longest=self.action_budget)
        return self.observe()

    def step(self, action: str) -> Outcome:
        before, self.level = self.level.boxes_on, self.level.after(action)
        change = self.level.boxes_on - before  # a push moves one box, so this is -1, 0 or 1
        reward = self.params.step_reward
        reward += {-1: self.params.box_off_reward, 0: 0.0, 1: self.params.box_on_reward}[change]
        if self.level.solved:
            return won(self.observe(), reward + self.params.solved_reward)
        return goes_on(self.observe(), reward)

    def observe(self) -> str:
        return self.state_key() if self.params.observation == "grid" else self.coordinates()

    def coordinates(self) -> str:
        inner = range(1, self.params.size - 1)
        walls = [(row, column) for row in inner for column in inner if (row, column) not in self.level.floor]
        pieces = {"player": [self.level.player], "box": self.level.boxes, "target": self.level.targets, "wall": walls}
        lines = [f"{name} {' '.join(f'{row},{column}' for row, column in sorted(at))}" for name, at in pieces.items()]
        return "\n".join(line.strip() for line in lines)

    def solve(self) -> list[str] | None:
        """The shortest solution from here among those that an episode's limits would allow."""
        return shortest_solution(self.level, longest=self.action_budget)

    def explain(self, actions: Sequence[str]) -> str:
        boxes = [cell for cell in sorted(self.level.boxes) if cell not in self.level.targets]
        targets = [cell for cell in sorted(self.level.targets) if cell not in self.level.boxes]
        pieces = [("me", [self.level.player]), ("box", boxes), ("target", targets)]
        told = ", ".join(f"{name} {cell_text(cell)}" for name, cells in pieces for cell in cells)
        return f"{told[0].upper()}{told[1:]}. Next: {', '.join(actions)}."

    def draw(self) -> Picture:
        size = range(self.params.size)
        return Picture(rows=tuple(tuple(self._name((row, column)) for column in size) for row in size))

    def state_key(self) -> str:
        return grid_text(self.draw().rows, SYMBOLS[self.params.symbols])

    def _name(self, cell: Cell) -> str:
        if cell not in self.level.floor:
            return "wall"
        piece = "player" if cell == self.level.player else "box" if cell in self.level.boxes else ""
        if cell in self.level.targets:
            return f"{piece}_on_target" if piece else "target"
        return piece or "empty"
