"""Pictures of random boards with their descriptions, from which an untrained patch encoder learns to see.

They belong to no task: cells of all gridworlds are mixed at random, and the answer says which cell is where.

    picture   3 rows of 4 cells, among them a box and a goal
    answer    box at row 1 col 2
              goal at row 3 col 4
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.core.messages import Exchange, Picture, user
from turnwise.core.random_streams import random_stream
from turnwise.core.samples import Sample
from turnwise.data.demonstrations import build_demonstration
from turnwise.envs.grid import describe_cells
from turnwise.pictures.gridworlds import CELLS
from turnwise.pictures.observation import draw_observation
from turnwise.render.renderer import Renderer

GROUNDS = ("empty", "ice")
OBJECTS = tuple(name for name in CELLS if name not in GROUNDS)
MAX_OBJECTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Boards:
    """Random boards, drawn and described."""

    per_step: int = 16
    """Boards per optimizer step."""
    max_side: int = 5
    """Maximum number of rows and of columns; the minimum is 2."""
    distinct: int = 4096
    """Number of boards; later ones repeat them. Drawing and processing a new one takes as long as training on it."""

    def describe(self, renderer: Renderer, pixels: int, seed: int, number: int) -> Sample:
        """Return a sample: the picture of a random board and the answer that describes it.

        `pixels`: of a cell, on each side.
        """
        rows = self.draw_rows(random_stream("warmup boards", seed, number % self.distinct))
        image = draw_observation(Picture(rows=rows), pixels)
        answer = describe_cells(rows, GROUNDS)
        return build_demonstration(number, [Exchange(messages=(user([image]),), answer=answer)], renderer)

    def draw_rows(self, rng: random.Random) -> tuple[tuple[str, ...], ...]:
        """Return the names of the cells: 1 to 4 objects on empty ground or on ice."""
        sides = range(2, self.max_side + 1)
        num_rows, num_columns, ground = rng.choice(sides), rng.choice(sides), rng.choice(GROUNDS)
        cells = [ground] * (num_rows * num_columns)
        for index in rng.sample(range(len(cells)), rng.randint(1, MAX_OBJECTS)):
            cells[index] = rng.choice(OBJECTS)
        return _split(cells, num_columns)


def _split(cells: Sequence[str], num_columns: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(cells[start : start + num_columns]) for start in range(0, len(cells), num_columns))
