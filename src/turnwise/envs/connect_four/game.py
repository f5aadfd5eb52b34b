"""Boards as numbers: a bit for each cell, so that a whole board is looked at in a few operations.

A column is `rows` bits from the bottom up and one more that stays 0, so that a line cannot run out of the top of one
column into the bottom of the next. The bits of a board with 6 rows:

    6 13 20 ..    spare
    5 12 19 ..    top row
    ..
    0  7 14 ..    bottom row
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache


@dataclass(frozen=True)
class BoardGeometry:
    """The geometry of one size."""

    rows: int
    columns: int

    @cached_property
    def columns_by_name(self) -> dict[str, int]:
        """The cells of each column. Columns are named from 1 at the left; to name one is a move."""
        column = (1 << self.rows) - 1
        return {str(place + 1): column << place * (self.rows + 1) for place in range(self.columns)}

    @cached_property
    def bottom(self) -> int:
        """The lowest cells."""
        return sum(1 << place * (self.rows + 1) for place in range(self.columns))

    @cached_property
    def full(self) -> int:
        return sum(self.columns_by_name.values())

    @cached_property
    def by_rows(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """Each cell with its column's name, as one reads a board: from the top row down, from left to right."""
        lowest = [(column & self.bottom, name) for name, column in self.columns_by_name.items()]
        return tuple(tuple((cell << height, name) for cell, name in lowest) for height in reversed(range(self.rows)))

    @cached_property
    def moves_from_middle(self) -> tuple[str, ...]:
        """The moves in the order in which a search should try them: most lines run through the middle."""
        return tuple(sorted(self.columns_by_name, key=lambda move: abs(2 * int(move) - 1 - self.columns)))

    @cached_property
    def columns_from_middle(self) -> tuple[int, ...]:
        return tuple(self.columns_by_name[move] for move in self.moves_from_middle)

    def landing(self, taken: int) -> int:
        """Where a piece can come to lie: 1 added at the bottom of a column is carried up to its first free cell."""
        return (taken + self.bottom) & self.full

    def has_four(self, stones: int) -> bool:
        """Whether four of these cells stand in a line: neighbours, then pairs of neighbours."""
        for step in (1, self.rows, self.rows + 1, self.rows + 2):
            pairs = stones & stones >> step
            if pairs & pairs >> 2 * step:
                return True
        return False

    def completing(self, stones: int) -> int:
        """The cells, taken or not, that make four in a line with three of these; in a column only the one on top."""
        cells = (stones << 1) & (stones << 2) & (stones << 3)
        for step in (self.rows, self.rows + 1, self.rows + 2):
            before = (stones << step) & (stones << 2 * step)  # two of them just before the cell
            after = (stones >> step) & (stones >> 2 * step)
            cells |= before & ((stones << 3 * step) | (stones >> step))
            cells |= after & ((stones >> 3 * step) | (stones << step))
        return cells & self.full


@dataclass(frozen=True, slots=True)
class ConnectFourGame:
    board: BoardGeometry
    stones: tuple[int, int] = (0, 0)
    """The cells of each player."""
    winner: int | None = None

    @property
    def player(self) -> int:
        return (self.stones[0] | self.stones[1]).bit_count() % 2

    @property
    def landing(self) -> int:
        """Where the next piece can come to lie; nowhere once the game is won."""
        return 0 if self.winner is not None else self.board.landing(self.stones[0] | self.stones[1])

    @property
    def moves(self) -> tuple[str, ...]:
        landing = self.landing
        return tuple([move for move, cells in self.board.columns_by_name.items() if landing & cells])

    def after(self, move: str) -> "ConnectFourGame":
        player, cell = self.player, self.landing & self.board.columns_by_name.get(move, 0)
        if not cell:
            raise ValueError("no legal move")
        mine, theirs = self.stones[player] | cell, self.stones[1 - player]
        winner = player if self.board.has_four(mine) else None
        return ConnectFourGame(self.board, (theirs, mine) if player else (mine, theirs), winner)

    def cells(self, side: int) -> tuple[tuple[str, ...], ...]:
        mine, theirs, landing = self.stones[side], self.stones[1 - side], self.landing

        def named(row: tuple[tuple[int, str], ...]) -> list[str]:
            return [
                "you" if mine & cell else "opponent" if theirs & cell else move if landing & cell else "empty"
                for cell, move in row
            ]

        return tuple(tuple(named(row)) for row in self.board.by_rows)


@lru_cache(maxsize=1 << 14)
def best_moves(game: ConnectFourGame, depth: int) -> tuple[str, ...]:
    """All moves that look best `depth` plies ahead, those nearest to the middle first."""
    board, mine, theirs = game.board, game.stones[game.player], game.stones[1 - game.player]
    if wins := game.landing & board.completing(mine):
        return _names(board, wins)
    if depth == 1:
        return _names(board, game.landing)
    threats, safe = _threats_and_safe(board, game.landing, theirs)
    if not safe:
        return _names(board, threats or game.landing)
    scores: dict[str, int] = {}
    best = -depth
    for move in _names(board, safe):
        cell = safe & board.columns_by_name[move]
        scores[move] = -look_ahead(board, theirs, mine | cell, depth - 1, -depth, 1 - best)  # exact from `best` on
        best = max(best, scores[move])
    return tuple(move for move, score in scores.items() if score == best)


def look_ahead(board: BoardGeometry, mine: int, theirs: int, depth: int, alpha: int, beta: int) -> int:
    """The score for a player who is to move and cannot win at once. Exact between `alpha` and `beta`, else a bound."""
    landing = board.landing(mine | theirs)
    if depth == 1 or not landing:
        return 0
    _, safe = _threats_and_safe(board, landing, theirs)
    if not safe:
        return 1 - depth
    if depth == 2:
        return 0
    best, most = -depth, min(beta, depth - 2)
    for column in board.columns_from_middle:
        if best >= most:
            break
        if cell := safe & column:
            best = max(best, -look_ahead(board, theirs, mine | cell, depth - 1, -most, -max(alpha, best)))
    return best


def _threats_and_safe(board: BoardGeometry, landing: int, theirs: int) -> tuple[int, int]:
    """Where the other player would win with the next piece; and the moves after which it cannot."""
    danger = board.completing(theirs)
    threats = landing & danger
    if threats & (threats - 1):  # two of them: both cannot be stopped
        return threats, 0
    return threats, (threats or landing) & ~(danger >> 1)


def _names(board: BoardGeometry, cells: int) -> tuple[str, ...]:
    return tuple(move for move in board.moves_from_middle if cells & board.columns_by_name[move])
