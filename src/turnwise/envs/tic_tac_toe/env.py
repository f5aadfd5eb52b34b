"""Tic-tac-toe: rules, perfect play by minimax, and the environment."""

from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Self

from turnwise.envs.games.env import GameEnv, GameParams
from turnwise.envs.games.game import StonesGame
from turnwise.settings.section import Positive

MOVES = ("1", "2", "3", "4", "5", "6", "7", "8", "9")
"""The cells row by row, from the top left."""

BITS = {move: 1 << index for index, move in enumerate(MOVES)}
LINES = [sum(BITS[cell] for cell in line) for line in ("123", "456", "789", "147", "258", "369", "159", "357")]


@dataclass(frozen=True, slots=True)
class TicTacToeGame(StonesGame):
    @property
    def legal_moves(self) -> tuple[str, ...]:
        if self.winner is not None:
            return ()
        return tuple([move for move, bit in BITS.items() if not self.taken & bit])

    def play(self, move: str) -> Self:
        if move not in self.legal_moves:
            raise ValueError("not a legal move")
        return self.put(BITS[move], lambda stones: any(stones & line == line for line in LINES))

    def cells(self, player: int) -> tuple[tuple[str, ...], ...]:
        names = [self._cell_name(move, player) for move in MOVES]
        return tuple(tuple(names[start : start + 3]) for start in (0, 3, 6))

    def _cell_name(self, move: str, player: int) -> str:
        if self.stones[player] & BITS[move]:
            return "you"
        if self.stones[1 - player] & BITS[move]:
            return "opponent"
        return "empty" if self.winner is not None else move


@cache
def minimax_value(game: TicTacToeGame) -> int:
    """Value for the player to move: positive wins, negative loses, 0 draws; a sooner end is further from 0."""
    if game.winner is not None:
        return -10
    best = max((-minimax_value(game.play(move)) for move in game.legal_moves), default=0)
    return best - (best > 0) + (best < 0)


@cache
def perfect_moves(game: TicTacToeGame) -> tuple[str, ...]:
    """All moves of the best value: the soonest win, else a draw, else the latest loss."""
    values = {move: -minimax_value(game.play(move)) for move in game.legal_moves}
    return tuple(move for move, value in values.items() if value == max(values.values()))


@cache
def hardest_move(game: TicTacToeGame) -> str:
    """The perfect move that wins most often against an opponent who errs."""
    return max(perfect_moves(game), key=lambda move: round(expected_score(game.play(move)), 9))


@cache
def expected_score(game: TicTacToeGame) -> float:
    """Mean score (win 1, draw 0.5) of the player who has just moved and plays `hardest_move` against random replies."""
    if not game.legal_moves:
        return 0.5 if game.winner is None else 1.0
    return fmean(_score_after_reply(game.play(move)) for move in game.legal_moves)


def _score_after_reply(game: TicTacToeGame) -> float:
    if not game.legal_moves:
        return 0.5 if game.winner is None else 0.0
    return expected_score(game.play(hardest_move(game)))


class TicTacToe(GameEnv):
    """Get three in a row, column or diagonal before the opponent does."""

    action_names = MOVES

    class Params(GameParams):
        max_turns: Positive = 7
        """Turns per episode, at most. A game takes up to 5; each invalid answer costs one more."""

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
