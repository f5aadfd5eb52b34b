"""A one-turn bandit with two named arms: one pays little every time, the other pays a lot rarely."""

import random
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from turnwise.core.messages import Picture
from turnwise.envs.answers import match_name
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, lost, won
from turnwise.settings.section import Share

NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (("Teacher", "Trader"), ("Farmer", "Pirate"), ("Baker", "Explorer"), ("Turtle", "Dragon")),
    "test": (("Librarian", "Gambler"), ("Gardener", "Hunter"), ("Clerk", "Racer"), ("Sheep", "Tiger")),
}
"""Pairs of (safe-sounding name, bold-sounding name). The two lists share no name."""


class Bandit(TextEnv):
    """Two machines: find the one that pays more on average."""

    max_turns = 1

    class Params(StrictParams):
        names: Literal["train", "test"] = "train"
        """List that the pair of names is drawn from."""
        reversed: bool = False
        """Give the safe-sounding name to the high arm, so that the names mislead."""
        low: float = 0.1
        """Reward of the low arm, paid every time."""
        high: float = 1.0
        """Reward of the high arm when it pays."""
        chance: Annotated[Share, Field(gt=0)] = 0.25
        """Probability that the high arm pays."""

        @model_validator(mode="after")
        def _high_arm_is_better(self) -> Self:
            if self.low >= self.high * self.chance:
                raise ValueError(
                    f"the low arm pays {self.low:g}, at least as much as the high one on average "
                    f"({self.high:g} x {self.chance:g}): lower low, or raise high or chance"
                )
            return self

    params: Params

    def rules(self) -> str:
        params = self.params
        return (
            f"{super().rules()} One pays {params.low:g} always. One pays {params.high:g} with chance "
            f"{params.chance:g}. The action is the name of a machine."
        )

    def reset(self, rng: random.Random) -> str:
        safe, bold = rng.choice(NAMES[self.params.names])
        self.high_arm = safe if self.params.reversed else bold
        self.arms = (safe, bold) if rng.random() < 0.5 else (bold, safe)
        self.payout = ""
        return f"{self.arms[0]}, {self.arms[1]}"

    def step(self, action: str) -> Outcome:
        arm = match_name(action, self.arms)
        if arm == self.high_arm:
            reward = self.params.high if self.rng.random() < self.params.chance else 0.0
        else:
            reward = self.params.low
        self.payout = f"{arm} pays {reward:g}."
        return won(self.payout, reward) if arm == self.high_arm else lost(self.payout, reward)

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(self.arms)

    def solve(self) -> list[str]:
        return [self.high_arm]

    def draw(self) -> Picture:
        return Picture(rows=(self.arms,), caption=self.payout)

    def state_key(self) -> str:
        return " ".join(self.arms)
