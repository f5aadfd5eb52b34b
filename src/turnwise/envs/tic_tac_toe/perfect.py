"""Perfect play: minimax over the whole game, remembered."""

from functools import cache
from statistics import fmean

from turnwise.envs.tic_tac_toe.game import TicTacToeGame


@cache
def value(game: TicTacToeGame) -> int:
    """For the player to move, both playing perfectly: above 0 won, below 0 lost, nearer to 0 the later; 0 drawn."""
    if game.winner is not None:
        return -10
    best = max((-value(game.after(move)) for move in game.moves), default=0)
    return best - (best > 0) + (best < 0)


@cache
def perfect_moves(game: TicTacToeGame) -> tuple[str, ...]:
    """All moves of the best value: the soonest win, or else a draw, or else the latest loss."""
    values = {move: -value(game.after(move)) for move in game.moves}
    return tuple(move for move, each in values.items() if each == max(values.values()))


@cache
def hardest_move(game: TicTacToeGame) -> str:
    """Of the perfect moves, the one that wins most often if the opponent errs."""
    return max(perfect_moves(game), key=lambda move: round(prospect(game.after(move)), 9))


@cache
def prospect(game: TicTacToeGame) -> float:
    """The mean result for who has just moved (win 1, draw 0.5) with `hardest_move` from here on against random play."""
    if not game.moves:
        return 0.5 if game.winner is None else 1.0
    return fmean(_after_reply(game.after(move)) for move in game.moves)


def _after_reply(game: TicTacToeGame) -> float:
    if not game.moves:
        return 0.5 if game.winner is None else 0.0
    return prospect(game.after(hardest_move(game)))
