"""`GameEnv`: one player of a two-player game against a scripted opponent."""

import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from turnwise.core.messages import Content, Picture
from turnwise.envs.games.game import (
    LEGEND,
    PICTURE_LEGEND,
    Game,
    board_text,
    draw_board,
    is_blocking_move,
    is_winning_move,
    play_random_opening,
    result_for,
)
from turnwise.envs.picture_env import PictureEnv
from turnwise.envs.text_env import Outcome, StrictParams, goes_on, lost, won
from turnwise.settings.section import Positive, Share

RESULT_TEXTS = {"win": "You win.", "draw": "A draw.", "loss": "You lose."}


class GameParams(StrictParams):
    """Parameters that all games share."""

    begins: Literal["random", "agent", "opponent"] = "random"
    """First player to move; `random` draws it per task."""
    strength: Share = 0.5
    """Probability that the opponent plays one of its best moves instead of a random one: 0 random, 1 full strength."""
    random_moves: int = Field(0, ge=0)
    """Random moves before the game starts, at most; the number is drawn per task. More openings are met this way."""
    win_reward: float = 1.0
    """Reward of a win."""
    draw_reward: float = 0.5
    """Reward of a draw."""
    loss_reward: float = 0.0
    """Reward of a loss."""
    draw_is_success: bool = False
    """Count a draw as success: against a perfect opponent a draw may be the best possible result."""
    max_turns: Positive
    """Turns per episode, at most."""
    max_actions_per_turn: Positive = 1
    """Actions per turn, at most. The opponent replies to each of them."""
    max_actions: int | None = Field(None, ge=1)
    """Actions per episode, at most; none: only the turns limit them."""

    @property
    @abstractmethod
    def longest_game(self) -> int:
        """Most moves that one player can make in a game."""

    @model_validator(mode="after")
    def _limits_allow_every_game(self) -> Self:
        budget = self.max_turns * self.max_actions_per_turn
        if min(budget, self.max_actions or budget) < self.longest_game:
            raise ValueError(
                f"a game can take {self.longest_game} of the agent's moves: raise max_turns or max_actions"
            )
        return self


class GameEnv(PictureEnv):
    """Play a `Game` against a script. Subclasses define the initial state and the moves of the scripted players."""

    params: GameParams
    game: Game
    player: int
    """The agent's player number, 0 or 1."""
    plain_cells = frozenset({"empty", *"123456789"})  # numbers are moves
    fact_example = "you at row 1 col 2"

    @abstractmethod
    def new_game(self) -> Game:
        """Return the game before the first move."""

    @abstractmethod
    def opponent_moves(self) -> Sequence[str]:
        """Return the moves that the opponent considers best in `self.game`, all equally good."""

    @abstractmethod
    def best_move(self) -> str:
        """Return the solver's best move for the agent in `self.game`."""

    def rules(self) -> str:
        params = self.params
        rewards = f"A win pays {params.win_reward:g}, a draw {params.draw_reward:g}, a loss {params.loss_reward:g}."
        return f"{super().rules()} {rewards}\n{LEGEND if self.shows_text else PICTURE_LEGEND}"

    def reset(self, rng: random.Random) -> Content:
        """The opponent's first move is part of the start state, which all members of a group share."""
        self.player = rng.randrange(2) if self.params.begins == "random" else int(self.params.begins == "opponent")
        self.game = self.opening(rng)
        if self.game.current_player != self.player:
            self._play_opponent(rng)
        return self.show(self.state_key())

    def opening(self, rng: random.Random) -> Game:
        """Return the initial state, after random moves where the parameters ask for them."""
        game, max_moves = self.new_game(), self.params.random_moves
        return play_random_opening(game, max_moves, rng) if max_moves else game

    def step(self, action: str) -> Outcome:
        self.game = self.game.play(action)
        if not result_for(self.game, self.player):
            self._play_opponent(self.rng)
        return self.outcome()

    def _play_opponent(self, rng: random.Random) -> None:
        moves = self.opponent_moves() if rng.random() < self.params.strength else self.game.legal_moves
        self.game = self.game.play(rng.choice(moves))

    def outcome(self) -> Outcome:
        result = result_for(self.game, self.player)
        if not result:
            return goes_on(self.show(self.state_key()))
        params = self.params
        reward = {"win": params.win_reward, "draw": params.draw_reward, "loss": params.loss_reward}[result]
        success = result == "win" or (result == "draw" and params.draw_is_success)
        return (won if success else lost)(self.show(self.state_key(), after=RESULT_TEXTS[result]), reward)

    def random_action(self, rng: random.Random) -> str | None:
        return rng.choice(self.game.legal_moves) if self.game.legal_moves else None

    def solve(self) -> list[str] | None:
        """The next move only: call it again after the opponent's reply."""
        return [self.best_move()] if self.game.legal_moves else None

    def explain(self, actions: Sequence[str]) -> str:
        """Give the reason where the move wins at once or blocks the opponent's win."""
        if is_winning_move(self.game, actions[0]):
            reason = "I can win. "
        elif is_blocking_move(self.game, actions[0]):
            reason = "I must block. "
        else:
            reason = ""
        return f"{reason}{super().explain(actions)}"

    def draw(self) -> Picture:
        return draw_board(self.game, self.player)

    def state_key(self) -> str:
        return board_text(self.game, self.player)
