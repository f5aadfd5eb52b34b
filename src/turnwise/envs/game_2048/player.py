"""A scripted player of 2048: it keeps cells empty and rows and columns in order, and may look one move ahead."""

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from turnwise.envs.game_2048.board import SLIDES, Board, Row, after, empty_cells, largest, with_new_tile, with_tile

STUCK = -10_000.0
"""The worth of a board on which nothing moves: less than that of any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    looks_ahead: bool
    """Whether it thinks of the tile that comes up and of its next move: twenty times slower, and far better."""
    room: float = 10.0
    """What an empty cell is worth, against order."""


STYLES = (
    Style(looks_ahead=False),
    *(Style(looks_ahead=True, room=room) for room in (10.0, 5.0, 15.0, 8.0, 20.0)),
)
"""The fast one first. Which one wins is a matter of luck, so that where one fails another seldom does too."""


def play_out(
    board: Board, luck: random.Random, style: Style, *, target: int, four_chance: float, longest: int
) -> list[str] | None:
    """The moves of a game to the target, with `luck` for new tiles; None if it ends before or takes over `longest`."""
    moves: list[str] = []
    while len(moves) < longest and (move := choose(board, style)):
        moves.append(move)
        board, _ = after(board, move)
        if largest(board) >= target:
            return moves
        board = with_new_tile(board, luck, four_chance=four_chance)
    return None


@lru_cache(maxsize=2**14)
def choose(board: Board, style: Style) -> str | None:
    """The move of the highest worth; None if nothing can move. Kept for a while: plans are asked for again."""
    worths = {move: _worth(moved, style) for move in SLIDES if (moved := after(board, move)[0]) != board}
    return max(worths, key=worths.__getitem__, default=None)


def _worth(board: Board, style: Style) -> float:
    if not style.looks_ahead:
        return _look_of(board, style.room)
    boards = [with_tile(board, cell, 2) for cell in empty_cells(board)]
    return sum(_worth_of_best_move(new, style.room) for new in boards) / len(boards)


def _worth_of_best_move(board: Board, room: float) -> float:
    reachable = (after(board, move)[0] for move in SLIDES)
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
