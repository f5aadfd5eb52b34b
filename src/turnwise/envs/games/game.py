"""A game of two: rules alone, no rewards, no text, no chance. Either side's view is made of it in `view`."""

import random
from collections.abc import Hashable
from typing import Protocol, Self


class Game(Hashable, Protocol):
    """A game at one moment. It never changes: a move gives another one. Player 0 begins, and the two alternate."""

    @property
    def player(self) -> int:
        """Whose move it is, 0 or 1."""
        ...

    @property
    def moves(self) -> tuple[str, ...]:
        """The legal moves; empty once the game is over."""
        ...

    @property
    def winner(self) -> int | None:
        """None as long as nobody has won, and after a draw."""
        ...

    def after(self, move: str) -> Self:
        """The game one move later. Any text is safe: a ValueError if it is no legal move."""
        ...

    def cells(self, side: int) -> tuple[tuple[str, ...], ...]:
        """The board as this player sees it, by rows: `you`, `opponent`, `empty`, or the move that would fill a cell."""
        ...


def opened(game: Game, most: int, rng: random.Random) -> Game:
    """The game after a random number of random moves, each of which leaves both sides a move to make."""
    for _ in range(rng.randint(0, most)):
        calm = [after for move in game.moves if leaves_both_a_move(after := game.after(move))]
        if not calm:
            break
        game = rng.choice(calm)
    return game


def leaves_both_a_move(game: Game) -> bool:
    """Whose turn it is can neither win at once nor fill the board."""
    return len(game.moves) > 1 and not any(wins(game, move) for move in game.moves)


def wins(game: Game, move: str) -> bool:
    """Whether this move wins at once."""
    return game.after(move).winner is not None


def blocks(game: Game, move: str) -> bool:
    """Whether the other player would win with this very move if one made another."""
    others = [game.after(other) for other in game.moves if other != move]
    return any(move in after.moves and wins(after, move) for after in others)
