"""The board of 2048: how tiles slide and merge, and where new ones come up."""

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

Row = tuple[int, ...]
Board = tuple[Row, ...]
"""Four rows of four tiles; 0 is an empty cell."""

BLANK: Board = ((0, 0, 0, 0),) * 4

SLIDES = {"Up": (True, False), "Right": (False, True), "Down": (True, True), "Left": (False, False)}
"""move -> (whether columns slide, not rows; whether to their end, not to their start)"""


def slide(board: Board, move: str) -> tuple[Board, int]:
    """The board after a move, before a new tile comes up; and the sum of the tiles that merging made."""
    upright, to_end = SLIDES[move]
    lines = zip(*board, strict=True) if upright else board
    slides = [slide_line(line, to_end) for line in lines]
    moved = tuple(line for line, _ in slides)
    return tuple(zip(*moved, strict=True)) if upright else moved, sum(merged for _, merged in slides)


@lru_cache(maxsize=2**16)
def slide_line(line: Row, to_end: bool) -> tuple[Row, int]:
    """A row or column after a move, and the sum of what merging made: of three equal tiles the front two merge."""
    if to_end:
        turned, merged = slide_line(line[::-1], False)
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
    return any(slide(board, move)[0] != board for move in SLIDES)


def largest_tile(board: Board) -> int:
    return max(map(max, board))


STUCK = -10_000.0
"""The worth of a board on which nothing moves: less than that of any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerStyle:
    looks_ahead: bool
    """Whether it thinks of the tile that comes up and of its next move: twenty times slower, and far better."""
    room: float = 10.0
    """What an empty cell is worth, against order."""


PLAYER_STYLES = (
    PlayerStyle(looks_ahead=False),
    *(PlayerStyle(looks_ahead=True, room=room) for room in (10.0, 5.0, 15.0, 8.0, 20.0)),
)
"""The fast one first. Which one wins is a matter of luck, so that where one fails another seldom does too."""


def play_to_target(
    board: Board, luck: random.Random, style: PlayerStyle, *, target: int, four_chance: float, longest: int
) -> list[str] | None:
    """The moves of a game to the target, with `luck` for new tiles; None if it ends before or takes over `longest`."""
    moves: list[str] = []
    while len(moves) < longest and (move := choose_move(board, style)):
        moves.append(move)
        board, _ = slide(board, move)
        if largest_tile(board) >= target:
            return moves
        board = with_new_tile(board, luck, four_chance=four_chance)
    return None


@lru_cache(maxsize=2**14)
def choose_move(board: Board, style: PlayerStyle) -> str | None:
    """The move of the highest worth; None if nothing can move. Kept for a while: plans are asked for again."""
    worths = {move: _worth(moved, style) for move in SLIDES if (moved := slide(board, move)[0]) != board}
    return max(worths, key=worths.__getitem__, default=None)


def _worth(board: Board, style: PlayerStyle) -> float:
    if not style.looks_ahead:
        return _look_of(board, style.room)
    boards = [with_tile(board, cell, 2) for cell in empty_cells(board)]
    return sum(_worth_of_best_move(new, style.room) for new in boards) / len(boards)


def _worth_of_best_move(board: Board, room: float) -> float:
    reachable = (slide(board, move)[0] for move in SLIDES)
    return max((_look_of(moved, room) for moved in reachable if moved != board), default=STUCK)


def _look_of(board: Board, room: float) -> float:
    return sum(_line_look(line, room) for line in (*board, *zip(*board, strict=True)))


@lru_cache(maxsize=2**16)
def _line_look(line: Row, room: float) -> float:
    """Empty cells are good; a line that goes up and down again is bad, the more so the larger its tiles."""
    sizes = [(tile.bit_length() - 1) ** 2 if tile else 0 for tile in line]
    steps = [second - first for first, second in pairwise(sizes)]
    rises, falls = sum(step for step in steps if step > 0), -sum(step for step in steps if step < 0)
    return room * line.count(0) - min(rises, falls)
