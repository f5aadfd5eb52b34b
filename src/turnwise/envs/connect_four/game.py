"""Connect four: bitboards, the rules, and alpha-beta search.

A board is an integer with one bit per cell, so that a whole board is examined in a few operations. A column has `rows`
bits from the bottom up and one spare bit that stays 0, so that no line runs from the top of one column into the bottom
of the next. Bits of a board with 6 rows:

    6 13 20 ..    spare
    5 12 19 ..    top row
    ..
    0  7 14 ..    bottom row
"""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Self

from turnwise.envs.games.game import StonesGame


@dataclass(frozen=True)
class BoardGeometry:
    """Masks and lines of a board of one size."""

    rows: int
    columns: int

    @cached_property
    def columns_by_name(self) -> dict[str, int]:
        """Cells of each column. Columns are named from 1 at the left; the name of a column is a move."""
        column = (1 << self.rows) - 1
        return {str(index + 1): column << index * (self.rows + 1) for index in range(self.columns)}

    @cached_property
    def bottom(self) -> int:
        """Lowest cell of every column."""
        return sum(1 << index * (self.rows + 1) for index in range(self.columns))

    @cached_property
    def full(self) -> int:
        return sum(self.columns_by_name.values())

    @cached_property
    def by_rows(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """(cell, name of its column) in reading order: from the top row down, from left to right."""
        lowest = [(column & self.bottom, name) for name, column in self.columns_by_name.items()]
        return tuple(tuple((cell << height, name) for cell, name in lowest) for height in reversed(range(self.rows)))

    @cached_property
    def moves_from_middle(self) -> tuple[str, ...]:
        """Moves in the order in which a search should try them: most lines pass through the middle."""
        return tuple(sorted(self.columns_by_name, key=lambda move: abs(2 * int(move) - 1 - self.columns)))

    @cached_property
    def columns_from_middle(self) -> tuple[int, ...]:
        return tuple(self.columns_by_name[move] for move in self.moves_from_middle)

    def landing_cells(self, taken: int) -> int:
        """Cells that the next piece can fall into: adding 1 at the bottom carries up to a column's first free cell."""
        return (taken + self.bottom) & self.full

    def has_four(self, stones: int) -> bool:
        """Return whether four of these cells are in a line: find pairs of neighbours, then pairs of pairs."""
        for step in (1, self.rows, self.rows + 1, self.rows + 2):
            pairs = stones & stones >> step
            if pairs & pairs >> 2 * step:
                return True
        return False

    def completing_cells(self, stones: int) -> int:
        """Cells, taken or free, that complete four in a line with three of these; in a column only the one on top."""
        cells = (stones << 1) & (stones << 2) & (stones << 3)
        for step in (self.rows, self.rows + 1, self.rows + 2):
            before = (stones << step) & (stones << 2 * step)  # the two cells just before it are taken
            after = (stones >> step) & (stones >> 2 * step)
            cells |= before & ((stones << 3 * step) | (stones >> step))
            cells |= after & ((stones >> 3 * step) | (stones << step))
        return cells & self.full


@dataclass(frozen=True, slots=True)
class ConnectFourGame(StonesGame):
    board: BoardGeometry = field(kw_only=True)

    @property
    def landing_cells(self) -> int:
        """Cells that the next piece can fall into; none once the game is won."""
        return 0 if self.winner is not None else self.board.landing_cells(self.taken)

    @property
    def legal_moves(self) -> tuple[str, ...]:
        landing = self.landing_cells
        return tuple([move for move, cells in self.board.columns_by_name.items() if landing & cells])

    def play(self, move: str) -> Self:
        cell = self.landing_cells & self.board.columns_by_name.get(move, 0)
        if not cell:
            raise ValueError("not a legal move")
        return self.put(cell, self.board.has_four)

    def cells(self, player: int) -> tuple[tuple[str, ...], ...]:
        mine, theirs, landing = self.stones[player], self.stones[1 - player], self.landing_cells

        def cell_names(row: tuple[tuple[int, str], ...]) -> list[str]:
            return [
                "you" if mine & cell else "opponent" if theirs & cell else move if landing & cell else "empty"
                for cell, move in row
            ]

        return tuple(tuple(cell_names(row)) for row in self.board.by_rows)


@lru_cache(maxsize=1 << 14)
def best_moves(game: ConnectFourGame, depth: int) -> tuple[str, ...]:
    """All moves that an alpha-beta search of `depth` plies scores best, those nearest to the middle first."""
    board, player = game.board, game.current_player
    mine, theirs, landing = game.stones[player], game.stones[1 - player], game.landing_cells
    if wins := landing & board.completing_cells(mine):
        return _move_names(board, wins)
    if depth == 1:
        return _move_names(board, landing)
    threats, safe = _threats_and_safe_cells(board, landing, theirs)
    if not safe:
        return _move_names(board, threats or landing)
    scores: dict[str, int] = {}
    best = -depth
    for move in _move_names(board, safe):
        cell = safe & board.columns_by_name[move]
        scores[move] = -alpha_beta(board, theirs, mine | cell, depth - 1, -depth, 1 - best)  # exact from `best` on
        best = max(best, scores[move])
    return tuple(move for move, score in scores.items() if score == best)


def alpha_beta(board: BoardGeometry, mine: int, theirs: int, depth: int, alpha: int, beta: int) -> int:
    """Score for a player to move who cannot win at once: exact between `alpha` and `beta`, else a bound.

    The winner scores the plies that remain at the end, 1 to `depth`, so that sooner is better; the loser scores the
    negative; 0 means that neither wins within `depth` plies. The last two plies are not played out: the cells that
    complete four, and the cells below them, already decide them.
    """
    landing = board.landing_cells(mine | theirs)
    if depth == 1 or not landing:
        return 0
    _, safe = _threats_and_safe_cells(board, landing, theirs)
    if not safe:
        return 1 - depth
    if depth == 2:
        return 0
    best, upper = -depth, min(beta, depth - 2)
    for column in board.columns_from_middle:
        if best >= upper:
            break
        if cell := safe & column:
            best = max(best, -alpha_beta(board, theirs, mine | cell, depth - 1, -upper, -max(alpha, best)))
    return best


def _threats_and_safe_cells(board: BoardGeometry, landing: int, theirs: int) -> tuple[int, int]:
    """Return (cells where the opponent wins with its next piece, cells after which it cannot)."""
    danger = board.completing_cells(theirs)
    threats = landing & danger
    if threats & (threats - 1):  # two or more: only one can be blocked
        return threats, 0
    return threats, (threats or landing) & ~(danger >> 1)


def _move_names(board: BoardGeometry, cells: int) -> tuple[str, ...]:
    return tuple(move for move in board.moves_from_middle if cells & board.columns_by_name[move])
