"""Connect four against an opponent that looks a few plies ahead as often as it is told to."""

import random
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from turnwise.config.section import Positive
from turnwise.envs.connect_four.game import BoardGeometry, ConnectFourGame, best_moves
from turnwise.envs.games.env import GameEnv, GameParams

Side = Annotated[int, Field(ge=4, le=8)]
Depth = Annotated[int, Field(ge=1, le=8)]


class ConnectFour(GameEnv):
    """Pieces fall to the bottom of a column. Get four in a row, column or diagonal before the opponent does."""

    class Params(GameParams):
        rows: Side = 6
        """4 to 8."""
        columns: Side = 7
        """4 to 8."""
        depth: Depth = 4
        """Plies (moves of either side) that the opponent's best moves look ahead, 1 to 8. It is not perfect."""
        solver_depth: Depth = 6
        """Plies that the solver looks ahead, 1 to 8. It is not perfect."""
        max_turns: Positive = 23
        """Turns an episode, at most. A game of 6 rows and 7 columns takes 21 of them, an invalid answer one more."""

        @property
        def longest_game(self) -> int:
            return (self.rows * self.columns + 1) // 2

    params: Params
    game: ConnectFourGame

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        self.board = BoardGeometry(rows=self.params.rows, columns=self.params.columns)
        self.action_names = tuple(self.board.columns_by_name)

    def new_game(self) -> ConnectFourGame:
        return ConnectFourGame(self.board)

    def opponent_moves(self) -> tuple[str, ...]:
        return best_moves(self.game, self.params.depth)

    def best_move(self) -> str:
        return best_moves(self.game, self.params.solver_depth)[0]
