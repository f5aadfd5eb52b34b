"""Environments of a few lines."""

import random

import turnwise as tw
from turnwise.envs.text_env import Outcome


class TwoUps(tw.TextEnv):
    """Choose twice."""

    max_turns = 2
    action_names = ("Up", "Down")

    def reset(self, rng: random.Random) -> str:
        self.ups = 0
        return "Now."

    def step(self, action: str) -> Outcome:
        self.ups += action == "Up"
        return tw.won() if self.ups == 2 else tw.goes_on("Again.")
