"""Sudoku boards: which cells see each other, what may stand where, and how a board is completed."""

import random
from collections.abc import Sequence
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


def completed(board: Sequence[int], rng: random.Random | None = None) -> Board | None:
    """A solution of this board, None if it has none; with a random stream, any one of several."""
    search = Search(board, rng)
    return tuple(search.cells) if search.succeeds() else None


class Search:
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
