"""Sudoku boards: which cells see each other, what may stand where, and how a board is completed."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt

Board = tuple[int, ...]
"""Digits row by row, 0 for an empty cell; 16 or 81 of them."""


@cache
def units_of(count: int) -> tuple[tuple[int, int, int], ...]:
    """For each of a board's `count` cells: its row, its column and its box, numbered so that no two units meet."""
    size = isqrt(count)
    box = isqrt(size)
    places = (divmod(cell, size) for cell in range(count))
    return tuple((row, size + col, 2 * size + row // box * box + col // box) for row, col in places)


@cache
def peers_of(count: int) -> tuple[tuple[int, ...], ...]:
    """For each of a board's `count` cells: the others of its row, column and box."""
    units = [set(own) for own in units_of(count)]
    cells = range(count)
    return tuple(tuple(other for other in cells if other != cell and units[cell] & units[other]) for cell in cells)


def candidates(board: Sequence[int], cell: int) -> list[int]:
    """The digits that no other cell of this one's row, column and box holds."""
    taken = {board[peer] for peer in peers_of(len(board))[cell]}
    return [digit for digit in range(1, isqrt(len(board)) + 1) if digit not in taken]


def solve_board(board: Sequence[int], rng: random.Random | None = None) -> Board | None:
    """A solution of this board, None if it has none; with a random stream, any one of several."""
    search = BoardSearch(board, rng)
    return tuple(search.cells) if search.succeeds() else None


class BoardSearch:
    """Depth first, always at the cell that has the fewest digits left. Sets of digits are bits of an integer: fast."""

    def __init__(self, board: Sequence[int], rng: random.Random | None) -> None:
        self.cells = list(board)
        self.rng = rng
        self.units = units_of(len(board))
        self.size = isqrt(len(board))
        self.all_digits = sum(1 << digit for digit in range(1, self.size + 1))
        self.used = [0] * (3 * self.size)  # of each unit
        for cell, digit in enumerate(board):
            if digit:
                self._toggle(cell, digit)

    def succeeds(self) -> bool:
        """Whether there is a solution; `cells` then holds it, and otherwise what it held before."""
        if 0 not in self.cells:
            return True
        cell, free = self._tightest()
        digits = [digit for digit in range(1, self.size + 1) if free >> digit & 1]
        if self.rng is not None:
            self.rng.shuffle(digits)
        for digit in digits:
            self.cells[cell] = digit
            self._toggle(cell, digit)
            if self.succeeds():
                return True
            self._toggle(cell, digit)
        self.cells[cell] = 0
        return False

    def _tightest(self) -> tuple[int, int]:
        """The empty cell with the fewest digits left, and these digits."""
        fewest, found = self.size + 1, (0, 0)
        for cell, (row, col, box) in enumerate(self.units):
            if self.cells[cell]:
                continue
            free = self.all_digits & ~(self.used[row] | self.used[col] | self.used[box])
            if free.bit_count() < fewest:
                fewest, found = free.bit_count(), (cell, free)
                if fewest <= 1:
                    break
        return found

    def _toggle(self, cell: int, digit: int) -> None:
        for unit in self.units[cell]:
            self.used[unit] ^= 1 << digit


@dataclass(frozen=True, slots=True, kw_only=True)
class SudokuPuzzle:
    start: Board
    solution: Board
    """The only one."""


def generate_puzzle(rng: random.Random, *, size: int, blanks: int) -> SudokuPuzzle:
    """A puzzle with `blanks` empty cells, or with fewer where no other digit can go without a second solution."""
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
    """Whether some solution has another digit at this cell: the one question that its removal raises."""
    others = (other for other in candidates(cells, cell) if other != digit)
    return any(solve_board([*cells[:cell], other, *cells[cell + 1 :]]) is not None for other in others)


LONGEST = 100
"""Characters; more than any placement needs."""
IN_WORDS = re.compile(r"place\s+(?P<digit>\d+)\s+at\s+row\s+(?P<row>\d+)\s+col(?:umn)?\s+(?P<col>\d+)", re.I | re.A)
IN_SHORT = re.compile(r"(?P<row>\d+)\s*,\s*(?P<col>\d+)\s*,\s*(?P<digit>\d+)", re.A)


def parse_placement(text: str, size: int) -> tuple[int, int]:
    """Cell and digit, 0 for none; a ValueError if the text names no cell or digit of a board of this size."""
    found = len(text) <= LONGEST and (IN_WORDS.fullmatch(text) or IN_SHORT.fullmatch(text))
    if not found:
        raise ValueError("no placement")
    row, col, digit = int(found["row"]), int(found["col"]), int(found["digit"])
    if not (1 <= row <= size and 1 <= col <= size and digit <= size):
        raise ValueError("no such cell or digit")
    return (row - 1) * size + col - 1, digit


def format_placement(cell: int, digit: int, size: int) -> str:
    """The short form: a third fewer tokens, and the cell is chosen before its digit."""
    return f"{cell // size + 1},{cell % size + 1},{digit}"
