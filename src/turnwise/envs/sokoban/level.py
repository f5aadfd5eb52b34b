"""Sokoban levels: moves, shortest solutions, and generation by reverse play."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from turnwise.core.errors import UserError
from turnwise.envs.grid import DIRECTIONS, Cell, neighbor
from turnwise.envs.shortest_path import search_path

State = tuple[Cell, frozenset[Cell]]
"""Player and boxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SokobanLevel:
    size: int
    floor: frozenset[Cell]
    """All cells that are not walls."""
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    @property
    def boxes_on_targets(self) -> int:
        return len(self.boxes & self.targets)

    def move(self, direction: str) -> "SokobanLevel":
        """Return the level after a move. Moving into a wall, or pushing a box into a wall or box, changes nothing."""
        return self.with_pieces(*push(self.floor, self.player, self.boxes, direction))

    def with_pieces(self, player: Cell, boxes: frozenset[Cell]) -> "SokobanLevel":
        return SokobanLevel(size=self.size, floor=self.floor, targets=self.targets, boxes=boxes, player=player)


def push(floor: frozenset[Cell], player: Cell, boxes: frozenset[Cell], direction: str) -> State:
    """Return the player and the boxes after a move, which is called for every edge of a search."""
    row, column = DIRECTIONS[direction]
    ahead = player[0] + row, player[1] + column
    if ahead not in floor:
        return player, boxes
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead[0] + row, ahead[1] + column
    if beyond not in floor or beyond in boxes:
        return player, boxes
    return ahead, boxes - {ahead} | {beyond}


def shortest_solution(level: SokobanLevel, max_moves: int) -> list[str] | None:
    """Find the shortest solution; None if it has more than `max_moves` moves."""

    def successors(state: State) -> Iterator[tuple[str, State]]:
        return ((direction, push(level.floor, *state, direction)) for direction in DIRECTIONS)

    return search_path((level.player, level.boxes), successors, lambda state: state[1] == level.targets, max_moves)


FLOOR_SHARE = (0.6, 0.85)
"""Range of the share of floor among the cells inside the border."""
PULL_SHARE = 0.6
"""Probability of pulling a box in reverse play when one can be pulled; otherwise the player moves alone."""
ATTEMPTS = 300
ATTEMPTS_PER_FLOOR = 10
"""Carving a floor costs more than a reverse play."""
ATTEMPTS_ALL_OFF = 50
"""Attempts in which every box must leave its target; after them one box is enough."""


def generate_level(rng: random.Random, *, size: int, boxes: int, max_moves: int) -> SokobanLevel:
    """Play a solved level in reverse for at most `max_moves`: the same moves forward are a solution."""
    for attempt in range(ATTEMPTS):
        if attempt % ATTEMPTS_PER_FLOOR == 0:
            floor = carve_floor(rng, size=size, min_cells=2 * boxes + 2)
        cells = rng.sample(sorted(floor), boxes + 1)
        targets, player = frozenset(cells[1:]), cells[0]
        solved = SokobanLevel(size=size, floor=floor, targets=targets, boxes=targets, player=player)
        level = play_in_reverse(rng, solved, moves=rng.randint((max_moves + 1) // 2, max_moves))
        if level.boxes_on_targets == 0 or (attempt >= ATTEMPTS_ALL_OFF and not level.solved):
            return level
    raise UserError(
        f"Found no level of size {size} with {boxes} boxes and {max_moves} moves: raise size or max_actions."
    )


def carve_floor(rng: random.Random, *, size: int, min_cells: int) -> frozenset[Cell]:
    """Return the cells of a random walk inside the border, which are connected."""
    inside = (size - 2) ** 2
    num_cells = min(max(min_cells, round(rng.uniform(*FLOOR_SHARE) * inside)), inside)
    cell = (rng.randint(1, size - 2), rng.randint(1, size - 2))
    floor = {cell}
    while len(floor) < num_cells:
        row, column = neighbor(cell, rng.choice(tuple(DIRECTIONS)))
        if 1 <= row <= size - 2 and 1 <= column <= size - 2:
            cell = (row, column)
            floor.add(cell)
    return frozenset(floor)


def play_in_reverse(rng: random.Random, level: SokobanLevel, *, moves: int) -> SokobanLevel:
    """Undo up to `moves` random moves without visiting a state twice, so that the solution stays long."""
    seen = {(level.player, level.boxes)}
    for _ in range(moves):
        steps, pulls = predecessors(level)
        steps = [earlier for earlier in steps if (earlier.player, earlier.boxes) not in seen]
        pulls = [earlier for earlier in pulls if (earlier.player, earlier.boxes) not in seen]
        if not steps and not pulls:
            break
        level = rng.choice(pulls if pulls and (not steps or rng.random() < PULL_SHARE) else steps)
        seen.add((level.player, level.boxes))
    return level


def predecessors(level: SokobanLevel) -> tuple[list[SokobanLevel], list[SokobanLevel]]:
    """Return the levels that one move turns into this one: (by the player alone, by a push)."""
    steps, pulls = [], []
    for direction, (row, column) in DIRECTIONS.items():
        behind = (level.player[0] - row, level.player[1] - column)
        ahead = neighbor(level.player, direction)
        if behind not in level.floor or behind in level.boxes:
            continue
        steps.append(level.with_pieces(behind, level.boxes))
        if ahead in level.boxes:
            pulls.append(level.with_pieces(behind, level.boxes - {ahead} | {level.player}))
    return steps, pulls
