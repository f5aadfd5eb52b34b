"""A game as one of its players sees it. Either side sees its own pieces as X, so that one policy can play both."""

from functools import lru_cache

from turnwise.core.messages import Picture
from turnwise.envs.games.game import Game

SYMBOLS = {"you": "X", "opponent": "O", "empty": "_"}
"""A cell that a legal move would fill shows the name of that move instead."""

LEGEND = ", ".join(f"{symbol} {name}" for name, symbol in SYMBOLS.items()) + ". A number is a move: your X goes there."


def ending(game: Game, side: int) -> str:
    """How the game went for this player: win, draw or loss; empty while it goes on."""
    if game.winner is not None:
        return "win" if game.winner == side else "loss"
    return "" if game.moves else "draw"


@lru_cache(maxsize=4096)
def picture(game: Game, side: int) -> Picture:
    """Asked for several times a turn, so it is kept for a while."""
    return Picture(rows=game.cells(side), caption=ending(game, side))


@lru_cache(maxsize=4096)
def board_text(game: Game, side: int) -> str:
    """A space between cells makes each a token of its own."""
    return "\n".join(" ".join(SYMBOLS.get(name, name) for name in row) for row in picture(game, side).rows)
