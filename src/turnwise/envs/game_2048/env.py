"""2048: slide tiles and merge equal ones until a tile reaches the target. Episodes are long."""

import copy
import math
import random
from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from turnwise.core.messages import Content, Picture
from turnwise.envs.game_2048.game import (
    EMPTY_BOARD,
    PLAYER_STYLES,
    SLIDES,
    Board,
    can_move,
    largest_tile,
    play_to_target,
    slide,
    with_new_tile,
)
from turnwise.envs.grid import grid_text
from turnwise.envs.picture_env import PictureEnv
from turnwise.envs.text_env import Outcome, StrictParams, goes_on, lost, won
from turnwise.settings.section import Positive, Share

SYMBOLS = {"empty": "_", **{str(2**power): str(2**power) for power in range(1, 12)}}

TEXT_LEGEND, PICTURE_LEGEND = f"{SYMBOLS['empty']} empty.", "The image shows the tiles."


def check_power_of_two(number: int) -> int:
    if number.bit_count() != 1:
        below = 1 << number.bit_length() - 1
        raise ValueError(f"a tile is a power of two: choose {below} or {2 * below}")
    return number


def moves_for(target: int) -> int:
    """Moves in which a good player reaches the target whatever tiles appear.

    Nearly all new tiles are 2, so target / 2 is the minimum; half as many again allow for tiles in the way.
    """
    return 3 * target // 4 + 4


def default_max_turns(params: dict[str, Any]) -> int:
    return moves_for(params["target"])


class Game2048(PictureEnv):
    """The game 2048: all tiles slide, two equal tiles merge into their sum."""

    action_names = tuple(SLIDES)
    fact_example = "4 at row 1 col 2"

    class Params(StrictParams):
        target: Annotated[int, Field(ge=8, le=2048), AfterValidator(check_power_of_two)] = 128
        """Tile that wins the game, a power of two from 8 to 2048."""
        four_chance: Share = 0.1
        """Probability that a new tile is a 4 instead of a 2."""
        merge_reward: float = 0.1
        """Reward scale: a move pays this times log2(1 + sum of its merged tiles)."""
        max_turns: Annotated[int, Field(ge=1, default_factory=default_max_turns)]
        """Turns per episode, at most. Default: 3/4 of the target plus 4, enough to reach it."""
        max_actions_per_turn: Positive = 1
        """Actions per turn, at most."""
        max_actions: Annotated[int | None, Field(ge=1)] = None
        """Actions per episode, at most; none: only the turns limit them."""

        @model_validator(mode="after")
        def _limits_allow_the_target(self) -> Self:
            budget = min(self.max_turns * self.max_actions_per_turn, self.max_actions or math.inf)
            if budget < moves_for(self.target):
                raise ValueError(
                    f"target {self.target} needs {moves_for(self.target)} actions, and the limits allow {budget}: "
                    "raise max_turns and max_actions, or lower target"
                )
            return self

    params: Params

    def rules(self) -> str:
        return (
            f"{super().rules()} Reach the tile {self.params.target}.\n"
            f"After each move that moved a tile, a new tile is put on a random empty cell: "
            f"4 with chance {self.params.four_chance:g}, else 2. The game ends when no move is left.\n"
            f"Score: the sum of all merged tiles. {TEXT_LEGEND if self.shows_text else PICTURE_LEGEND}"
        )

    def reset(self, rng: random.Random) -> Content:
        self.score = self.actions = 0
        self.board = self._with_new_tile(self._with_new_tile(EMPTY_BOARD, rng), rng)
        return self.observe()

    def step(self, action: str) -> Outcome:
        """A move that changes nothing is legal: it adds no tile and only costs the turn."""
        moved, merged = slide(self.board, action)
        self.actions += 1
        self.score += merged
        reward = self.params.merge_reward * math.log2(merged + 1)
        if moved == self.board:
            return goes_on(self.observe())
        if largest_tile(moved) >= self.params.target:
            self.board = moved
            return won(self.observe(), reward)
        self.board = self._with_new_tile(moved, self.rng)
        return goes_on(self.observe(), reward) if can_move(self.board) else lost(self.observe(), reward)

    def solve(self) -> list[str] | None:
        """The moves of the first scripted player that reaches the target from here.

        New tiles come from a copy of this member's random stream, so the moves succeed exactly as planned; the player
        chooses each of them from the board alone, without knowing the next tile.
        """
        max_moves = self.action_budget - self.actions
        target, four_chance = self.params.target, self.params.four_chance
        plans = (
            play_to_target(
                self.board, copy.copy(self.rng), style, target=target, four_chance=four_chance, max_moves=max_moves
            )
            for style in PLAYER_STYLES
        )
        return next((plan for plan in plans if plan is not None), None)

    def _with_new_tile(self, board: Board, rng: random.Random) -> Board:
        return with_new_tile(board, rng, four_chance=self.params.four_chance)

    def observe(self) -> Content:
        return self.show(self.state_key(), after=f"Score {self.score}")

    def draw(self) -> Picture:
        return Picture(rows=cell_names(self.board), caption=f"Score {self.score}")

    def state_key(self) -> str:
        """The board without the score, which does not influence what follows."""
        return board_text(self.board)


def cell_names(board: Board) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(str(tile) if tile else "empty" for tile in line) for line in board)


@lru_cache(maxsize=4096)
def board_text(board: Board) -> str:
    """Cached: asked for several times per turn."""
    return grid_text(cell_names(board), SYMBOLS)
