"""Sokoban's world: where things stand, what a move does, and the shortest solution."""

from collections import deque
from dataclasses import dataclass

from turnwise.envs.grid import DIRECTIONS, Cell, moved


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
        ahead = moved(self.player, direction)
        beyond = moved(ahead, direction)
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
