"""Sudoku: boards and their solver, a generator of puzzles with one solution, and placements as text."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt

Board = tuple[int, ...]
"""16 or 81 digits row by row; 0 is an empty cell."""


@cache
def units_of(count: int) -> tuple[tuple[int, int, int], ...]:
    """Row, column and box of each of a board's `count` cells, as distinct unit numbers."""
    size = isqrt(count)
    box = isqrt(size)
    positions = (divmod(cell, size) for cell in range(count))
    return tuple((row, size + col, 2 * size + row // box * box + col // box) for row, col in positions)


@cache
def peers_of(count: int) -> tuple[tuple[int, ...], ...]:
    """The other cells of the row, column and box of each of a board's `count` cells."""
    units = [set(cell_units) for cell_units in units_of(count)]
    cells = range(count)
    return tuple(tuple(other for other in cells if other != cell and units[cell] & units[other]) for cell in cells)


def candidates(board: Sequence[int], cell: int) -> list[int]:
    """Digits that occur nowhere else in the row, column and box of this cell."""
    taken = {board[peer] for peer in peers_of(len(board))[cell]}
    return [digit for digit in range(1, isqrt(len(board)) + 1) if digit not in taken]


def solve_board(board: Sequence[int], rng: random.Random | None = None) -> Board | None:
    """Return a solution of this board, or None; with `rng`, a random one of several."""
    search = BoardSearch(board, rng)
    return tuple(search.cells) if search.find_solution() else None


class BoardSearch:
    """Depth-first search that always fills the most constrained cell. Sets of digits are bit masks, for speed."""

    def __init__(self, board: Sequence[int], rng: random.Random | None) -> None:
        self.cells = list(board)
        self.rng = rng
        self.units = units_of(len(board))
        self.size = isqrt(len(board))
        self.all_digits = sum(1 << digit for digit in range(1, self.size + 1))
        self.used = [0] * (3 * self.size)  # bit mask of digits per unit
        for cell, digit in enumerate(board):
            if digit:
                self._toggle(cell, digit)

    def find_solution(self) -> bool:
        """Fill `cells` with a solution and return True; without a solution leave `cells` as it was and return False."""
        if 0 not in self.cells:
            return True
        cell, free = self._most_constrained_cell()
        digits = [digit for digit in range(1, self.size + 1) if free >> digit & 1]
        if self.rng is not None:
            self.rng.shuffle(digits)
        for digit in digits:
            self.cells[cell] = digit
            self._toggle(cell, digit)
            if self.find_solution():
                return True
            self._toggle(cell, digit)
        self.cells[cell] = 0
        return False

    def _most_constrained_cell(self) -> tuple[int, int]:
        """Return (the empty cell with the fewest candidates, bit mask of its candidates)."""
        fewest, tightest = self.size + 1, (0, 0)
        for cell, (row, col, box) in enumerate(self.units):
            if self.cells[cell]:
                continue
            free = self.all_digits & ~(self.used[row] | self.used[col] | self.used[box])
            if free.bit_count() < fewest:
                fewest, tightest = free.bit_count(), (cell, free)
                if fewest <= 1:
                    break
        return tightest

    def _toggle(self, cell: int, digit: int) -> None:
        for unit in self.units[cell]:
            self.used[unit] ^= 1 << digit


@dataclass(frozen=True, slots=True, kw_only=True)
class SudokuPuzzle:
    start: Board
    solution: Board
    """The only solution."""


def generate_puzzle(rng: random.Random, *, size: int, blanks: int) -> SudokuPuzzle:
    """Return a puzzle with `blanks` empty cells, or fewer if any further blank would allow a second solution."""
    solution = solve_board([0] * size**2, rng)
    assert solution is not None, "an empty board has solutions"
    return SudokuPuzzle(start=remove_digits(rng, solution, blanks), solution=solution)


def remove_digits(rng: random.Random, solution: Board, blanks: int) -> Board:
    cells = list(solution)
    for cell in rng.sample(range(len(cells)), len(cells)):
        if cells.count(0) == blanks:
            break
        digit, cells[cell] = cells[cell], 0
        if has_other_solution(cells, cell, digit):
            cells[cell] = digit
    return tuple(cells)


def has_other_solution(cells: list[int], cell: int, digit: int) -> bool:
    """Return whether the board has a solution with another digit in this cell."""
    others = (other for other in candidates(cells, cell) if other != digit)
    return any(solve_board([*cells[:cell], other, *cells[cell + 1 :]]) is not None for other in others)


MAX_PLACEMENT_CHARS = 100
"""Longest text that is parsed; placements need fewer characters."""
LONG_FORM = re.compile(r"place\s+(?P<digit>\d+)\s+at\s+row\s+(?P<row>\d+)\s+col(?:umn)?\s+(?P<col>\d+)", re.I | re.A)
SHORT_FORM = re.compile(r"(?P<row>\d+)\s*,\s*(?P<col>\d+)\s*,\s*(?P<digit>\d+)", re.A)


def parse_placement(text: str, size: int) -> tuple[int, int]:
    """Parse `place 5 at row 2 col 3` or `2,3,5` into (cell, digit), with digit 0 to clear the cell.

    Raises ValueError if the text has neither form, or the cell or digit does not exist on a board of this size.
    """
    match = len(text) <= MAX_PLACEMENT_CHARS and (LONG_FORM.fullmatch(text) or SHORT_FORM.fullmatch(text))
    if not match:
        raise ValueError("not a placement")
    row, col, digit = int(match["row"]), int(match["col"]), int(match["digit"])
    if not (1 <= row <= size and 1 <= col <= size and digit <= size):
        raise ValueError("no such cell or digit")
    return (row - 1) * size + col - 1, digit


def format_placement(cell: int, digit: int, size: int) -> str:
    """The short form: a third fewer tokens, and the cell is chosen before the digit."""
    return f"{cell // size + 1},{cell % size + 1},{digit}"
