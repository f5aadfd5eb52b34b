"""Pictures of random boards with their descriptions, from which tiny_vlm learns to see before it acts.

They belong to no task: cells of all gridworlds are mixed at random, and the answer says which cell is where.

    picture   3 rows of 4 cells, among them a box and a goal
    answer    box at row 1 col 2
              goal at row 3 col 4
"""

import random
from collections.abc import Sequence

from turnwise.core.messages import Picture, user
from turnwise.core.random_streams import random_stream
from turnwise.core.samples import Sample
from turnwise.data.demonstrations import Exchange, build_demonstration
from turnwise.envs.grid import describe_cells
from turnwise.models.loading.tiny_vlm import PIXELS
from turnwise.pictures.gridworlds import CELLS
from turnwise.pictures.observation import draw_observation
from turnwise.render.renderer import Renderer

GROUNDS = ("empty", "ice")
OBJECTS = tuple(name for name in CELLS if name not in GROUNDS)
MAX_OBJECTS = 4
SIDES = range(2, 6)
"""Possible numbers of rows and of columns."""


def described_board(renderer: Renderer, seed: int, number: int) -> Sample:
    """Return a sample: the picture of a random board, one token per cell, and the answer that describes it."""
    rng = random_stream("warmup boards", seed, number)
    rows = random_board(rng)
    image = draw_observation(Picture(rows=rows), PIXELS)
    answer = describe_cells(rows, GROUNDS)
    return build_demonstration(number, [Exchange(messages=(user([image]),), answer=answer)], renderer)


def random_board(rng: random.Random) -> tuple[tuple[str, ...], ...]:
    """Return the names of the cells: 1 to 4 objects on empty ground or on ice."""
    num_rows, num_columns, ground = rng.choice(SIDES), rng.choice(SIDES), rng.choice(GROUNDS)
    cells = [ground] * (num_rows * num_columns)
    for index in rng.sample(range(len(cells)), rng.randint(1, MAX_OBJECTS)):
        cells[index] = rng.choice(OBJECTS)
    return _split(cells, num_columns)


def _split(cells: Sequence[str], num_columns: int) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(cells[start : start + num_columns]) for start in range(0, len(cells), num_columns))
