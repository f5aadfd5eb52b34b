"""The rules of connect four."""

from dataclasses import dataclass

from turnwise.envs.connect_four.board import Board


@dataclass(frozen=True, slots=True)
class ConnectFourGame:
    board: Board
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
