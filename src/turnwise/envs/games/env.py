"""One side of a game against a scripted opponent."""

import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from turnwise.config.section import Positive, Share
from turnwise.core.messages import Picture
from turnwise.envs.games.game import (
    LEGEND,
    Game,
    board_text,
    draw_board,
    is_blocking_move,
    is_winning_move,
    play_random_opening,
    result_for,
)
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, goes_on, lost, won

ENDINGS = {"win": "You win.", "draw": "A draw.", "loss": "You lose."}


class GameParams(StrictParams):
    """What all games against a script may set."""

    begins: Literal["random", "agent", "opponent"] = "random"
    """Who makes the first move; random: drawn for each task."""
    strength: Share = 0.5
    """The chance that a move of the opponent is its best one and not a random one; 0 random play, 1 its best play."""
    random_moves: int = Field(0, ge=0)
    """Moves that chance makes before the game begins: up to so many, drawn for each task, so that all of it is met."""
    win_reward: float = 1.0
    """At the end of a game that was won."""
    draw_reward: float = 0.5
    """At the end of a draw."""
    loss_reward: float = 0.0
    """At the end of a game that was lost."""
    draw_is_success: bool = False
    """Count a draw as success: against a perfect opponent there may be no more to reach."""
    max_turns: Positive
    """Turns an episode, at most."""
    max_actions_per_turn: Positive = 1
    """Actions a turn, at most. The opponent answers each of them."""
    max_actions: int | None = Field(None, ge=1)
    """Actions an episode, at most."""

    @property
    @abstractmethod
    def longest_game(self) -> int:
        """The most moves that one side can make in a game."""

    @model_validator(mode="after")
    def _limits_let_every_game_end(self) -> Self:
        budget = self.max_turns * self.max_actions_per_turn
        if min(budget, self.max_actions or budget) < self.longest_game:
            raise ValueError(f"a game can take {self.longest_game} moves of yours: allow as many turns and actions")
        return self


class GameEnv(TextEnv):
    """A `Game` as an environment. Subclasses say how it starts and what the scripted players think best."""

    params: GameParams
    game: Game
    side: int
    """Which of the two players the agent is."""

    @abstractmethod
    def new_game(self) -> Game:
        """The game before the first move."""

    @abstractmethod
    def opponent_moves(self) -> Sequence[str]:
        """What the opponent thinks best in `self.game`: one or more moves that it holds for equally good."""

    @abstractmethod
    def best_move(self) -> str:
        """The agent's best move in `self.game`, as far as the solver sees."""

    def rules(self) -> str:
        pay = self.params
        pays = f"A win pays {pay.win_reward:g}, a draw {pay.draw_reward:g}, a loss {pay.loss_reward:g}."
        return f"{super().rules()} {pays}\n{LEGEND}"

    def reset(self, rng: random.Random) -> str:
        """The opponent's opening belongs to the start state, which the members of a group share."""
        self.side = rng.randrange(2) if self.params.begins == "random" else int(self.params.begins == "opponent")
        self.game = self.opening(rng)
        if self.game.player != self.side:
            self._answer(rng)
        return self.state_key()

    def opening(self, rng: random.Random) -> Game:
        """The game as it begins: empty, or after moves that chance made."""
        return (
            play_random_opening(self.new_game(), self.params.random_moves, rng)
            if self.params.random_moves
            else self.new_game()
        )

    def step(self, action: str) -> Outcome:
        self.game = self.game.after(action)
        if not result_for(self.game, self.side):
            self._answer(self.rng)
        return self.outcome()

    def _answer(self, rng: random.Random) -> None:
        """The opponent's move."""
        moves = self.opponent_moves() if rng.random() < self.params.strength else self.game.moves
        self.game = self.game.after(rng.choice(moves))

    def outcome(self) -> Outcome:
        how = result_for(self.game, self.side)
        if not how:
            return goes_on(self.state_key())
        pay = {"win": self.params.win_reward, "draw": self.params.draw_reward, "loss": self.params.loss_reward}[how]
        success = how == "win" or (how == "draw" and self.params.draw_is_success)
        return (won if success else lost)(f"{self.state_key()}\n{ENDINGS[how]}", pay)

    def random_action(self, rng: random.Random) -> str | None:
        return rng.choice(self.game.moves) if self.game.moves else None

    def solve(self) -> list[str] | None:
        """The next move only: ask again when the opponent has answered."""
        return [self.best_move()] if self.game.moves else None

    def explain(self, actions: Sequence[str]) -> str:
        """Says so if the move wins at once, or takes the place where the opponent would."""
        reason = (
            "I can win. "
            if is_winning_move(self.game, actions[0])
            else "I must block. "
            if is_blocking_move(self.game, actions[0])
            else ""
        )
        return f"{reason}{super().explain(actions)}"

    def draw(self) -> Picture:
        return draw_board(self.game, self.side)

    def state_key(self) -> str:
        return board_text(self.game, self.side)
