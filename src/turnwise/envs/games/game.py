"""Two-player board games: the rules as immutable states, and how a player sees the board."""

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, Self

from turnwise.core.messages import Picture

SYMBOLS = {"you": "X", "opponent": "O", "empty": "_"}
"""Both players see their own pieces as X, so that one policy can play either. A cell that a legal move would fill
shows the name of that move instead."""

LEGEND = ", ".join(f"{symbol} {name}" for name, symbol in SYMBOLS.items()) + ". A number is a move: your X goes there."

PICTURE_LEGEND = "The image shows your pieces as X and the opponent's as O. A number is a move: your X goes there."


class Game(Hashable, Protocol):
    """Immutable state of a game between players 0 and 1, who alternate; player 0 moves first."""

    @property
    def current_player(self) -> int: ...

    @property
    def legal_moves(self) -> tuple[str, ...]:
        """Empty once the game is over."""
        ...

    @property
    def winner(self) -> int | None:
        """None while the game continues, and after a draw."""
        ...

    def play(self, move: str) -> Self:
        """Return the state after this move. Any text is safe: raises ValueError if the move is not legal."""
        ...

    def cells(self, player: int) -> tuple[tuple[str, ...], ...]:
        """Rows of the board as `player` sees it: `you`, `opponent`, `empty`, or the move that would fill the cell."""
        ...


@dataclass(frozen=True, slots=True)
class StonesGame:
    """Base of games in which a move puts a stone of one's own on a free cell. Cells are the bits of an integer."""

    stones: tuple[int, int] = (0, 0)
    """Cells of each player."""
    winner: int | None = None

    @property
    def taken(self) -> int:
        return self.stones[0] | self.stones[1]

    @property
    def current_player(self) -> int:
        return self.taken.bit_count() % 2

    def put(self, cell: int, has_won: Callable[[int], bool]) -> Self:
        """Return the state after the current player put a stone on a cell. `has_won`: whether its stones win."""
        player = self.current_player
        mine, theirs = self.stones[player] | cell, self.stones[1 - player]
        stones = (theirs, mine) if player else (mine, theirs)
        return replace(self, stones=stones, winner=player if has_won(mine) else None)


def result_for(game: Game, player: int) -> str:
    """`win`, `draw` or `loss` for this player; empty while the game continues."""
    if game.winner is not None:
        return "win" if game.winner == player else "loss"
    return "" if game.legal_moves else "draw"


def is_winning_move(game: Game, move: str) -> bool:
    return game.play(move).winner is not None


def is_blocking_move(game: Game, move: str) -> bool:
    """Return whether the opponent could win with this same move if another one were played now."""
    others = [game.play(other) for other in game.legal_moves if other != move]
    return any(move in after.legal_moves and is_winning_move(after, move) for after in others)


def play_random_opening(game: Game, max_moves: int, rng: random.Random) -> Game:
    """Play 0 to `max_moves` random moves, none of which leaves a position that the next move can end."""
    for _ in range(rng.randint(0, max_moves)):
        open_positions = [after for move in game.legal_moves if is_undecided(after := game.play(move))]
        if not open_positions:
            break
        game = rng.choice(open_positions)
    return game


def is_undecided(game: Game) -> bool:
    """Return whether the next move can neither win nor fill the board."""
    return len(game.legal_moves) > 1 and not any(is_winning_move(game, move) for move in game.legal_moves)


@lru_cache(maxsize=4096)
def draw_board(game: Game, player: int) -> Picture:
    """Cached: asked for several times per turn."""
    return Picture(rows=game.cells(player), caption=result_for(game, player))


@lru_cache(maxsize=4096)
def board_text(game: Game, player: int) -> str:
    """The board as text. The spaces make each cell a token of its own."""
    return "\n".join(" ".join(SYMBOLS.get(name, name) for name in row) for row in draw_board(game, player).rows)
