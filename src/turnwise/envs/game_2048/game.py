"""2048: how tiles slide, merge and appear, and a scripted player."""

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

Row = tuple[int, ...]
Board = tuple[Row, ...]
"""Four rows of four tiles; 0 is an empty cell."""

EMPTY_BOARD: Board = ((0, 0, 0, 0),) * 4

SLIDES = {"Up": (True, False), "Right": (False, True), "Down": (True, True), "Left": (False, False)}
"""move -> (slides columns rather than rows, slides towards the end rather than the start)"""


def slide(board: Board, move: str) -> tuple[Board, int]:
    """Return (board after a move and before the new tile, sum of the merged tiles)."""
    by_columns, to_end = SLIDES[move]
    lines = zip(*board, strict=True) if by_columns else board
    slides = [slide_line(line, to_end) for line in lines]
    moved = tuple(line for line, _ in slides)
    return tuple(zip(*moved, strict=True)) if by_columns else moved, sum(merged for _, merged in slides)


@lru_cache(maxsize=2**16)
def slide_line(line: Row, to_end: bool) -> tuple[Row, int]:
    """Return (row or column after a move, sum of the merged tiles). Of three equal tiles the front two merge."""
    if to_end:
        mirrored, merged = slide_line(line[::-1], False)
        return mirrored[::-1], merged
    tiles: list[int] = []
    merged, mergeable = 0, 0  # mergeable: the last tile, if it has not merged yet
    for tile in filter(None, line):
        if tile == mergeable:
            tiles[-1] += tile
            merged += tiles[-1]
            mergeable = 0
        else:
            tiles.append(tile)
            mergeable = tile
    return (*tiles, *(0 for _ in range(len(line) - len(tiles)))), merged


def with_new_tile(board: Board, rng: random.Random, *, four_chance: float) -> Board:
    """Put a 4, with probability `four_chance`, or a 2 on a random empty cell."""
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


STUCK_SCORE = -10_000.0
"""Heuristic score of a board on which nothing moves: lower than any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerStyle:
    looks_ahead: bool
    """Average over the next tile and take the best move after it: twenty times slower, and far stronger."""
    empty_weight: float = 10.0
    """Weight of an empty cell, relative to monotonic lines."""


PLAYER_STYLES = (
    PlayerStyle(looks_ahead=False),
    *(PlayerStyle(looks_ahead=True, empty_weight=weight) for weight in (10.0, 5.0, 15.0, 8.0, 20.0)),
)
"""The fast one first. Which style wins depends on the tiles that appear, so where one fails another usually wins."""


def play_to_target(
    board: Board, rng: random.Random, style: PlayerStyle, *, target: int, four_chance: float, max_moves: int
) -> list[str] | None:
    """Play with `rng` for new tiles; return the moves to the target, or None if `max_moves` did not reach it."""
    moves: list[str] = []
    while len(moves) < max_moves and (move := choose_move(board, style)):
        moves.append(move)
        board, _ = slide(board, move)
        if largest_tile(board) >= target:
            return moves
        board = with_new_tile(board, rng, four_chance=four_chance)
    return None


@lru_cache(maxsize=2**14)
def choose_move(board: Board, style: PlayerStyle) -> str | None:
    """Return the move with the highest score; None if nothing can move. Cached: plans are requested repeatedly."""
    scores = {move: _score(moved, style) for move in SLIDES if (moved := slide(board, move)[0]) != board}
    return max(scores, key=scores.__getitem__, default=None)


def _score(board: Board, style: PlayerStyle) -> float:
    if not style.looks_ahead:
        return _board_score(board, style.empty_weight)
    boards = [with_tile(board, cell, 2) for cell in empty_cells(board)]
    return sum(_best_move_score(new, style.empty_weight) for new in boards) / len(boards)


def _best_move_score(board: Board, empty_weight: float) -> float:
    reachable = (slide(board, move)[0] for move in SLIDES)
    return max((_board_score(moved, empty_weight) for moved in reachable if moved != board), default=STUCK_SCORE)


def _board_score(board: Board, empty_weight: float) -> float:
    return sum(_line_score(line, empty_weight) for line in (*board, *zip(*board, strict=True)))


@lru_cache(maxsize=2**16)
def _line_score(line: Row, empty_weight: float) -> float:
    """Reward empty cells; penalise a line that both rises and falls, the more the larger its tiles are."""
    sizes = [(tile.bit_length() - 1) ** 2 if tile else 0 for tile in line]
    steps = [second - first for first, second in pairwise(sizes)]
    rises, falls = sum(step for step in steps if step > 0), -sum(step for step in steps if step < 0)
    return empty_weight * line.count(0) - min(rises, falls)
