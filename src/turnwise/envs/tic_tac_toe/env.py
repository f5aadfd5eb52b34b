"""Tic-tac-toe against an opponent that plays perfectly as often as it is told to."""

from turnwise.config.section import Positive
from turnwise.envs.games.env import GameEnv, GameParams
from turnwise.envs.tic_tac_toe.game import MOVES, TicTacToeGame
from turnwise.envs.tic_tac_toe.perfect import hardest_move, perfect_moves


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
