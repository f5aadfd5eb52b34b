"""Puzzles by digging: a full board loses digits for as long as its solution stays the only one."""

import random
from dataclasses import dataclass

from turnwise.envs.sudoku.board import Board, candidates, completed


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    start: Board
    solution: Board
    """The only one."""


def generate(rng: random.Random, *, size: int, blanks: int) -> Puzzle:
    """A puzzle with `blanks` empty cells, or with fewer where no other digit can go without a second solution."""
    solution = completed([0] * size**2, rng)
    assert solution is not None, "an empty board has solutions"
    return Puzzle(start=dug(rng, solution, blanks), solution=solution)


def dug(rng: random.Random, solution: Board, blanks: int) -> Board:
    cells = list(solution)
    for cell in rng.sample(range(len(cells)), len(cells)):
        if cells.count(0) == blanks:
            break
        digit, cells[cell] = cells[cell], 0
        if has_other_solution(cells, cell, digit):
            cells[cell] = digit
    return tuple(cells)


def has_other_solution(cells: list[int], cell: int, digit: int) -> bool:
    """Whether some solution has another digit at this cell: the one question that its removal raises."""
    others = (other for other in candidates(cells, cell) if other != digit)
    return any(completed([*cells[:cell], other, *cells[cell + 1 :]]) is not None for other in others)
