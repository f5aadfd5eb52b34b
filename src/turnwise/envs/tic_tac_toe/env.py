"""The rules of tic-tac-toe."""

from dataclasses import dataclass
from functools import cache
from statistics import fmean

from turnwise.config.section import Positive
from turnwise.envs.games.env import GameEnv, GameParams

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


@cache
def minimax_value(game: TicTacToeGame) -> int:
    """For the player to move, both playing perfectly: above 0 won, below 0 lost, nearer to 0 the later; 0 drawn."""
    if game.winner is not None:
        return -10
    best = max((-minimax_value(game.after(move)) for move in game.moves), default=0)
    return best - (best > 0) + (best < 0)


@cache
def perfect_moves(game: TicTacToeGame) -> tuple[str, ...]:
    """All moves of the best value: the soonest win, or else a draw, or else the latest loss."""
    values = {move: -minimax_value(game.after(move)) for move in game.moves}
    return tuple(move for move, each in values.items() if each == max(values.values()))


@cache
def hardest_move(game: TicTacToeGame) -> str:
    """Of the perfect moves, the one that wins most often if the opponent errs."""
    return max(perfect_moves(game), key=lambda move: round(expected_score(game.after(move)), 9))


@cache
def expected_score(game: TicTacToeGame) -> float:
    """The mean result for who has just moved (win 1, draw 0.5) with `hardest_move` from here on against random play."""
    if not game.moves:
        return 0.5 if game.winner is None else 1.0
    return fmean(_after_reply(game.after(move)) for move in game.moves)


def _after_reply(game: TicTacToeGame) -> float:
    if not game.moves:
        return 0.5 if game.winner is None else 0.0
    return expected_score(game.after(hardest_move(game)))


class TicTacToe(GameEnv):
    """Get three in a row, column or diagonal before the opponent does."""

    action_names = MOVES

    class Params(GameParams):
        max_turns: Positive = 7
        """Turns an episode, at most. A game takes 5 of them, an invalid answer one more."""

        @property
        def longest_game(self) -> int:
            return 5

    params: Params
    game: TicTacToeGame

    def new_game(self) -> TicTacToeGame:
        return TicTacToeGame()

    def opponent_moves(self) -> tuple[str, ...]:
        return perfect_moves(self.game)

    def best_move(self) -> str:
        return hardest_move(self.game)
