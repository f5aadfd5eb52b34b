"""Sokoban's world: where things stand, what a move does, and the shortest solution."""

import random
from collections import deque
from dataclasses import dataclass

from turnwise.core.errors import UserError
from turnwise.envs.grid import DIRECTIONS, Cell, neighbor


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What moves: the player and the boxes. What does not: the floor (all other cells are walls) and the targets."""

    size: int
    floor: frozenset[Cell]
    targets: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell

    @property
    def solved(self) -> bool:
        return self.boxes == self.targets

    @property
    def boxes_on(self) -> int:
        """Boxes that stand on targets."""
        return len(self.boxes & self.targets)

    def after(self, direction: str) -> "Level":
        """A move into a wall, or of a box into a wall or another box, changes nothing."""
        ahead = neighbor(self.player, direction)
        beyond = neighbor(ahead, direction)
        if ahead not in self.floor:
            return self
        if ahead not in self.boxes:
            return self.with_pieces(ahead, self.boxes)
        if beyond not in self.floor or beyond in self.boxes:
            return self
        return self.with_pieces(ahead, self.boxes - {ahead} | {beyond})

    def with_pieces(self, player: Cell, boxes: frozenset[Cell]) -> "Level":
        return Level(size=self.size, floor=self.floor, targets=self.targets, boxes=boxes, player=player)


def shortest_solution(level: Level, longest: int) -> list[str] | None:
    """Breadth first; None if there is no solution of at most `longest` moves."""
    queue: deque[tuple[Level, list[str]]] = deque([(level, [])])
    seen = {(level.player, level.boxes)}
    while queue:
        here, moves = queue.popleft()
        if here.solved:
            return moves
        if len(moves) == longest:
            continue
        for direction in DIRECTIONS:
            after = here.after(direction)
            if (after.player, after.boxes) not in seen:
                seen.add((after.player, after.boxes))
                queue.append((after, [*moves, direction]))
    return None


FLOOR_SHARE = (0.6, 0.85)
"""Of the cells inside the border, from and to."""
PULL_SHARE = 0.6
"""How often a box is pulled where one can be: the rest are steps of the player alone."""
TRIES = 300
TRIES_A_ROOM = 10
"""Carving costs more than playing back."""
TRIES_ALL_OFF = 50
"""So often every box must leave its target; after that one box will do."""


def generate_level(rng: random.Random, *, size: int, boxes: int, longest: int) -> Level:
    """An unsolved level with a solution of at most `longest` moves, by construction: it takes back no more."""
    for attempt in range(TRIES):
        if attempt % TRIES_A_ROOM == 0:
            floor = carve_floor(rng, size=size, least=2 * boxes + 2)
        cells = rng.sample(sorted(floor), boxes + 1)
        targets, player = frozenset(cells[1:]), cells[0]
        solved = Level(size=size, floor=floor, targets=targets, boxes=targets, player=player)
        level = play_in_reverse(rng, solved, moves=rng.randint((longest + 1) // 2, longest))
        if level.boxes_on == 0 or (attempt >= TRIES_ALL_OFF and not level.solved):
            return level
    raise UserError(f"found no level of size {size} with {boxes} boxes and {longest} moves: raise size or max_actions")


def carve_floor(rng: random.Random, *, size: int, least: int) -> frozenset[Cell]:
    """A connected room inside the border: the cells of a random walk."""
    inside = (size - 2) ** 2
    wanted = min(max(least, round(rng.uniform(*FLOOR_SHARE) * inside)), inside)
    cell = (rng.randint(1, size - 2), rng.randint(1, size - 2))
    floor = {cell}
    while len(floor) < wanted:
        row, column = neighbor(cell, rng.choice(tuple(DIRECTIONS)))
        if 1 <= row <= size - 2 and 1 <= column <= size - 2:
            cell = (row, column)
            floor.add(cell)
    return frozenset(floor)


def play_in_reverse(rng: random.Random, level: Level, *, moves: int) -> Level:
    """Takes back at most `moves` moves at random and never comes to a state twice, so that the way stays long."""
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


def predecessors(level: Level) -> tuple[list[Level], list[Level]]:
    """All levels that one move turns into this one: by a step of the player alone, and by a push."""
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
