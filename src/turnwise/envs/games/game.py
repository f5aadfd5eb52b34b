"""A game of two: rules alone, no rewards, no text, no chance. Either side's view is made of it in `view`."""

import random
from collections.abc import Hashable
from functools import lru_cache
from typing import Protocol, Self

from turnwise.core.messages import Picture


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


def play_random_opening(game: Game, most: int, rng: random.Random) -> Game:
    """The game after a random number of random moves, each of which leaves both sides a move to make."""
    for _ in range(rng.randint(0, most)):
        calm = [after for move in game.moves if is_undecided(after := game.after(move))]
        if not calm:
            break
        game = rng.choice(calm)
    return game


def is_undecided(game: Game) -> bool:
    """Whose turn it is can neither win at once nor fill the board."""
    return len(game.moves) > 1 and not any(is_winning_move(game, move) for move in game.moves)


def is_winning_move(game: Game, move: str) -> bool:
    """Whether this move wins at once."""
    return game.after(move).winner is not None


def is_blocking_move(game: Game, move: str) -> bool:
    """Whether the other player would win with this very move if one made another."""
    others = [game.after(other) for other in game.moves if other != move]
    return any(move in after.moves and is_winning_move(after, move) for after in others)


SYMBOLS = {"you": "X", "opponent": "O", "empty": "_"}
"""A cell that a legal move would fill shows the name of that move instead."""

LEGEND = ", ".join(f"{symbol} {name}" for name, symbol in SYMBOLS.items()) + ". A number is a move: your X goes there."


def result_for(game: Game, side: int) -> str:
    """How the game went for this player: win, draw or loss; empty while it goes on."""
    if game.winner is not None:
        return "win" if game.winner == side else "loss"
    return "" if game.moves else "draw"


@lru_cache(maxsize=4096)
def draw_board(game: Game, side: int) -> Picture:
    """Asked for several times a turn, so it is kept for a while."""
    return Picture(rows=game.cells(side), caption=result_for(game, side))


@lru_cache(maxsize=4096)
def board_text(game: Game, side: int) -> str:
    """A space between cells makes each a token of its own."""
    return "\n".join(" ".join(SYMBOLS.get(name, name) for name in row) for row in draw_board(game, side).rows)
