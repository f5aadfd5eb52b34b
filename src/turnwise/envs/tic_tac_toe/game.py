"""The rules of tic-tac-toe."""

from dataclasses import dataclass

MOVES = ("1", "2", "3", "4", "5", "6", "7", "8", "9")
"""The cells by rows, from the top left."""

BITS = {move: 1 << place for place, move in enumerate(MOVES)}
LINES = [sum(BITS[cell] for cell in line) for line in ("123", "456", "789", "147", "258", "369", "159", "357")]


@dataclass(frozen=True, slots=True)
class TicTacToeGame:
    stones: tuple[int, int] = (0, 0)
    """The cells of each player, a bit for each."""
    winner: int | None = None

    @property
    def player(self) -> int:
        return (self.stones[0] | self.stones[1]).bit_count() % 2

    @property
    def moves(self) -> tuple[str, ...]:
        if self.winner is not None:
            return ()
        taken = self.stones[0] | self.stones[1]
        return tuple([move for move, bit in BITS.items() if not taken & bit])

    def after(self, move: str) -> "TicTacToeGame":
        if move not in self.moves:
            raise ValueError("no legal move")
        player = self.player
        mine, theirs = self.stones[player] | BITS[move], self.stones[1 - player]
        winner = player if any(mine & line == line for line in LINES) else None
        return TicTacToeGame((theirs, mine) if player else (mine, theirs), winner)

    def cells(self, side: int) -> tuple[tuple[str, ...], ...]:
        names = [self._name(move, side) for move in MOVES]
        return tuple(tuple(names[start : start + 3]) for start in (0, 3, 6))

    def _name(self, move: str, side: int) -> str:
        if self.stones[side] & BITS[move]:
            return "you"
        if self.stones[1 - side] & BITS[move]:
            return "opponent"
        return "empty" if self.winner is not None else move
