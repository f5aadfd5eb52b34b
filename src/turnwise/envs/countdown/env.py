"""Countdown: write an expression of the given numbers that equals the target."""

import random
from typing import Annotated

from pydantic import Field

from turnwise.core.messages import Picture
from turnwise.envs.countdown.puzzle import (
    evaluate,
    generate_puzzle,
    numbers_in,
    parse_expression,
    random_expression,
    uses_each_at_most_once,
)
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, check_range, goes_on, won
from turnwise.settings.section import Positive

NumberCount = Annotated[int, Field(ge=2, le=6)]


class Countdown(TextEnv):
    """Reach the target with an expression of the numbers."""

    split_start_states = True
    max_turns = 1

    class Params(StrictParams):
        fewest: NumberCount = 3
        """Fewest numbers of a puzzle, 2 to 6."""
        most: NumberCount = 4
        """Most numbers of a puzzle, 2 to 6."""
        largest: Annotated[int, Field(ge=1, le=999)] = 99
        """Largest number of a puzzle; numbers are drawn from 1 to this."""
        smallest_target: Positive = 10
        """Smallest target."""
        largest_target: Positive = 99
        """Largest target."""
        correct_reward: float = 1.0
        """Reward of an episode that reaches the target."""
        close_reward: float = 0.1
        """Reward of an episode that uses the numbers correctly but misses the target."""

        _check_numbers = check_range("fewest", "most")
        _check_targets = check_range("smallest_target", "largest_target")

    params: Params

    def rules(self) -> str:
        return (
            f"{super().rules()} Use each number at most once, with + - * / and ( ).\n"
            "The action is the expression. Example: (1 + 2) * 3"
        )

    def reset(self, rng: random.Random) -> str:
        self.puzzle = generate_puzzle(
            rng,
            fewest=self.params.fewest,
            most=self.params.most,
            largest=self.params.largest,
            targets=(self.params.smallest_target, self.params.largest_target),
        )
        self.earned = 0.0
        return self.observe()

    def step(self, action: str) -> Outcome:
        """An episode earns the value of its best expression: a second wrong result pays nothing more."""
        expression = parse_expression(action)
        if not uses_each_at_most_once(numbers_in(expression), self.puzzle.numbers):
            return goes_on(f"Use only the numbers, each at most once.\n{self.observe()}")
        value = evaluate(expression)
        earned = self.params.correct_reward if value == self.puzzle.target else self.params.close_reward
        reward, self.earned = earned - self.earned, earned
        if value == self.puzzle.target:
            return won("Correct.", reward)
        return goes_on(f"That is {value}.\n{self.observe()}", reward)

    def observe(self) -> str:
        return f"Numbers: {' '.join(map(str, self.puzzle.numbers))}\nTarget: {self.puzzle.target}"

    def random_action(self, rng: random.Random) -> str:
        """An expression of some of the numbers, whatever its value."""
        count = rng.randint(2, len(self.puzzle.numbers))
        return random_expression(rng, rng.sample(self.puzzle.numbers, count)).text

    def solve(self) -> list[str]:
        return [self.puzzle.solution]

    def draw(self) -> Picture:
        return Picture(rows=(tuple(map(str, self.puzzle.numbers)),), caption=f"Target: {self.puzzle.target}")

    def state_key(self) -> str:
        """The puzzle and the reward so far, which decides how much can still be earned."""
        return f"{self.observe()}\nEarned: {self.earned:g}"
