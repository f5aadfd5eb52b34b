"""A guessing game on OpenEnv's own classes and server: its secret comes from the seed, its state lasts an episode."""

import random
from typing import Any

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

MAX_GUESSES = 5


class GuessAction(Action):
    guess: int = Field(ge=1, le=8, description="Your guess, 1 to 8")


class GuessObservation(Observation):
    hint: str = ""


class NumberEnvironment(Environment):
    """Guess the number, 1 to 8."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> GuessObservation:
        self._secret = random.Random(seed).randint(1, 8)
        self._state = State(episode_id=episode_id, step_count=0)
        return GuessObservation(hint="I think of a number from 1 to 8.")

    def step(self, action: GuessAction, timeout_s: float | None = None, **options: Any) -> GuessObservation:
        self._state.step_count += 1
        right, last = action.guess == self._secret, self._state.step_count == MAX_GUESSES
        hint = "right" if right else "higher" if action.guess < self._secret else "lower"
        return GuessObservation(hint=hint, reward=float(right), done=right or last)

    @property
    def state(self) -> State:
        return self._state


app = create_app(NumberEnvironment, GuessAction, GuessObservation, env_name="number_env", max_concurrent_envs=4)
