"""The bandit: one turn, two names, and a choice between a small sure pay and a rare large one."""

import random
from typing import Annotated, Literal

from pydantic import Field

from turnwise.config.section import Share
from turnwise.core.messages import Picture
from turnwise.envs.answers import match_name
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv, lost, won

NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (("Teacher", "Trader"), ("Farmer", "Pirate"), ("Baker", "Explorer"), ("Turtle", "Dragon")),
    "test": (("Librarian", "Gambler"), ("Gardener", "Hunter"), ("Clerk", "Racer"), ("Sheep", "Tiger")),
}
"""(a name that sounds safe, a name that sounds bold); no name stands in both lists."""


class Bandit(TextEnv):
    """Two machines: find the one that pays more on average."""

    max_turns = 1

    class Params(StrictParams):
        names: Literal["train", "test"] = "train"
        """Which pairs of names are used."""
        reversed: bool = False
        """The names mislead: the high arm bears the safe name."""
        low: float = 0.1
        """What the low arm always pays."""
        high: float = 1.0
        """What the high arm pays at times."""
        chance: Annotated[Share, Field(gt=0)] = 0.25
        """How often the high arm pays."""

    params: Params

    def rules(self) -> str:
        pay = self.params
        return (
            f"{super().rules()} One pays {pay.low:g} always. One pays {pay.high:g} with chance {pay.chance:g}. "
            "The action is the name of a machine."
        )

    def reset(self, rng: random.Random) -> str:
        safe, bold = rng.choice(NAMES[self.params.names])
        self.high_arm = safe if self.params.reversed else bold
        self.arms = (safe, bold) if rng.random() < 0.5 else (bold, safe)
        self.paid = ""
        return f"{self.arms[0]}, {self.arms[1]}"

    def step(self, action: str) -> Outcome:
        arm = match_name(action, self.arms)
        if arm == self.high_arm:
            reward = self.params.high if self.rng.random() < self.params.chance else 0.0
        else:
            reward = self.params.low
        self.paid = f"{arm} pays {reward:g}."
        return won(self.paid, reward) if arm == self.high_arm else lost(self.paid, reward)

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(self.arms)

    def solve(self) -> list[str]:
        return [self.high_arm]

    def draw(self) -> Picture:
        return Picture(rows=(self.arms,), caption=self.paid)

    def state_key(self) -> str:
        return " ".join(self.arms)
