"""Sokoban: push every box onto a target. Boxes cannot be pulled, so mistakes may be final."""

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from turnwise.core.messages import Content, Picture
from turnwise.envs.grid import DIRECTIONS, Cell, cell_text, grid_text, legend
from turnwise.envs.picture_env import PictureEnv
from turnwise.envs.sokoban.level import generate_level, shortest_solution
from turnwise.envs.text_env import Outcome, StrictParams, goes_on, won

NAMES = ("wall", "empty", "target", "box_on_target", "box", "player", "player_on_target")
SYMBOLS = {
    "standard": dict(zip(NAMES, "#_O√XPS", strict=True)),
    "other": dict(zip(NAMES, "W.GCBA*", strict=True)),
}
"""Symbol sets of the grid and its legend."""
PICTURE_LEGEND = (
    "The image shows the player, boxes (wooden, green on a target), targets (red rings), walls (brick) and empty floor."
)


class Sokoban(PictureEnv):
    """Push every box onto a target. You cannot pull."""

    split_start_states = True
    max_turns = 5
    max_actions_per_turn = 5
    max_actions = 10
    action_names = tuple(DIRECTIONS)
    plain_cells = frozenset({"empty", "wall"})
    view_params = tuple(name for name in PictureEnv.view_params if name != "observation")

    class Params(StrictParams):
        size: Annotated[int, Field(ge=5, le=10)] = 6
        """Rows and columns including the border of walls, 5 to 10."""
        boxes: Annotated[int, Field(ge=1, le=3)] = 1
        """Boxes and targets, 1 to 3."""
        symbols: Literal["standard", "other"] = "standard"
        """Symbol set of the grid and its legend."""
        observation: Annotated[
            Literal["grid", "coordinates", "image", "both"],
            BeforeValidator(lambda value: "grid" if value == "text" else value),
        ] = "grid"
        """Form of the observation: grid (or text), coordinates (row and column of each piece), image, or both (grid
        and image)."""
        step_reward: float = -0.1
        """Reward of every action."""
        box_on_reward: float = 1.0
        """Reward of pushing a box onto a target."""
        box_off_reward: float = -1.0
        """Reward of pushing a box off a target."""
        solved_reward: float = 10.0
        """Reward of solving the level, in addition to box_on_reward for the last box."""

    params: Params

    def rules(self) -> str:
        if self.params.observation == "image":
            return f"{super().rules()}\n{PICTURE_LEGEND}"
        if self.params.observation != "coordinates":
            return f"{super().rules()}\n{legend(SYMBOLS[self.params.symbols])}"
        last = self.params.size - 1
        return f"{super().rules()}\nCells are row,column from 0,0 at the top left to {last},{last}. The border is wall."

    @classmethod
    def stream_params(cls, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters with images as grids: the levels are the same."""
        shown = "coordinates" if params["observation"] == "coordinates" else "grid"
        return super().stream_params(params) | {"observation": shown}

    def reset(self, rng: random.Random) -> Content:
        self.level = generate_level(rng, size=self.params.size, boxes=self.params.boxes, max_moves=self.action_budget)
        return self.observe()

    def step(self, action: str) -> Outcome:
        before, self.level = self.level.boxes_on_targets, self.level.move(action)
        change = self.level.boxes_on_targets - before  # a push moves one box, so this is -1, 0 or 1
        reward = self.params.step_reward
        reward += {-1: self.params.box_off_reward, 0: 0.0, 1: self.params.box_on_reward}[change]
        if self.level.solved:
            return won(self.observe(), reward + self.params.solved_reward)
        return goes_on(self.observe(), reward)

    def observe(self) -> Content:
        return self.coordinates() if self.params.observation == "coordinates" else self.show(self.state_key())

    def coordinates(self) -> str:
        inner = range(1, self.params.size - 1)
        walls = [(row, column) for row in inner for column in inner if (row, column) not in self.level.floor]
        pieces = {"player": [self.level.player], "box": self.level.boxes, "target": self.level.targets, "wall": walls}
        lines = [f"{name} {' '.join(f'{row},{column}' for row, column in sorted(at))}" for name, at in pieces.items()]
        return "\n".join(line.strip() for line in lines)

    def solve(self) -> list[str] | None:
        """The shortest solution from here, if an episode's limits allow it."""
        return shortest_solution(self.level, max_moves=self.action_budget)

    def explain(self, actions: Sequence[str]) -> str:
        boxes = [cell for cell in sorted(self.level.boxes) if cell not in self.level.targets]
        targets = [cell for cell in sorted(self.level.targets) if cell not in self.level.boxes]
        pieces = [("me", [self.level.player]), ("box", boxes), ("target", targets)]
        positions = ", ".join(f"{name} {cell_text(cell)}" for name, cells in pieces for cell in cells)
        return f"{positions[0].upper()}{positions[1:]}. Next: {', '.join(actions)}."

    def draw(self) -> Picture:
        size = range(self.params.size)
        return Picture(rows=tuple(tuple(self._cell_name((row, column)) for column in size) for row in size))

    def state_key(self) -> str:
        return grid_text(self.draw().rows, SYMBOLS[self.params.symbols])

    def _cell_name(self, cell: Cell) -> str:
        if cell not in self.level.floor:
            return "wall"
        piece = "player" if cell == self.level.player else "box" if cell in self.level.boxes else ""
        if cell in self.level.targets:
            return f"{piece}_on_target" if piece else "target"
        return piece or "empty"
