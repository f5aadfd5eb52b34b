"""The board of 2048: how tiles slide and merge, and where new ones come up."""

import random
from functools import lru_cache

Row = tuple[int, ...]
Board = tuple[Row, ...]
"""Four rows of four tiles; 0 is an empty cell."""

BLANK: Board = ((0, 0, 0, 0),) * 4

SLIDES = {"Up": (True, False), "Right": (False, True), "Down": (True, True), "Left": (False, False)}
"""move -> (whether columns slide, not rows; whether to their end, not to their start)"""


def after(board: Board, move: str) -> tuple[Board, int]:
    """The board after a move, before a new tile comes up; and the sum of the tiles that merging made."""
    upright, to_end = SLIDES[move]
    lines = zip(*board, strict=True) if upright else board
    slides = [slid(line, to_end) for line in lines]
    moved = tuple(line for line, _ in slides)
    return tuple(zip(*moved, strict=True)) if upright else moved, sum(merged for _, merged in slides)


@lru_cache(maxsize=2**16)
def slid(line: Row, to_end: bool) -> tuple[Row, int]:
    """A row or column after a move, and the sum of what merging made: of three equal tiles the front two merge."""
    if to_end:
        turned, merged = slid(line[::-1], False)
        return turned[::-1], merged
    made: list[int] = []
    merged, waiting = 0, 0  # waiting: the last tile, if it may still merge
    for tile in filter(None, line):
        if tile == waiting:
            made[-1] += tile
            merged += made[-1]
            waiting = 0
        else:
            made.append(tile)
            waiting = tile
    return (*made, *(0 for _ in range(len(line) - len(made)))), merged


def with_new_tile(board: Board, rng: random.Random, *, four_chance: float) -> Board:
    """A 4 or a 2 on one of the empty cells, each as likely as the others."""
    cell = rng.choice(empty_cells(board))
    return with_tile(board, cell, 4 if rng.random() < four_chance else 2)


def with_tile(board: Board, cell: tuple[int, int], tile: int) -> Board:
    row, column = cell
    line = (*board[row][:column], tile, *board[row][column + 1 :])
    return (*board[:row], line, *board[row + 1 :])


def empty_cells(board: Board) -> list[tuple[int, int]]:
    return [(row, column) for row, line in enumerate(board) for column, tile in enumerate(line) if not tile]


def can_move(board: Board) -> bool:
    return any(after(board, move)[0] != board for move in SLIDES)


def largest(board: Board) -> int:
    return max(map(max, board))
