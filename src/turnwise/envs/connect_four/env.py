"""Connect four against an opponent that searches a few plies ahead."""

import random
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from turnwise.envs.connect_four.game import BoardGeometry, ConnectFourGame, best_moves
from turnwise.envs.games.env import GameEnv, GameParams
from turnwise.settings.section import Positive

BoardSize = Annotated[int, Field(ge=4, le=8)]
SearchDepth = Annotated[int, Field(ge=1, le=8)]


class ConnectFour(GameEnv):
    """Pieces fall to the bottom of a column. Get four in a row, column or diagonal before the opponent does."""

    class Params(GameParams):
        rows: BoardSize = 6
        """Rows of the board, 4 to 8."""
        columns: BoardSize = 7
        """Columns of the board, 4 to 8."""
        depth: SearchDepth = 4
        """Search depth of the opponent's best moves in plies, 1 to 8. It does not play perfectly."""
        solver_depth: SearchDepth = 6
        """Search depth of the solver in plies, 1 to 8. It does not play perfectly."""
        max_turns: Positive = 23
        """Turns per episode, at most. A game on 6 x 7 takes up to 21; each invalid answer costs one more."""

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
        return ConnectFourGame(board=self.board)

    def opponent_moves(self) -> tuple[str, ...]:
        return best_moves(self.game, self.params.depth)

    def best_move(self) -> str:
        return best_moves(self.game, self.params.solver_depth)[0]
